/* The program of TestHostile in C: hostile_victim_test.go says what each behaviour is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIFETIME = 20 }; /* seconds, of this process and of each child */

struct bytes {
	unsigned char *at;
	size_t size;
};

struct heard {
	char file[4096], id[64], name[128];
	struct bytes body;
};

static void put(int to, const void *from, size_t size)
{
	const unsigned char *b = from;
	while (size > 0) {
		ssize_t n = write(to, b, size);
		if (n < 0 && errno != EINTR)
			return;
		if (n > 0)
			b += n, size -= (size_t)n;
	}
}

static void get(void *to, size_t size)
{
	unsigned char *b = to;
	while (size > 0) {
		ssize_t n = read(3, b, size);
		if (n == 0 || (n < 0 && errno != EINTR))
			_exit(0);
		if (n > 0)
			b += n, size -= (size_t)n;
	}
}

static uint32_t u32(const unsigned char *b)
{
	return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void set32(unsigned char *b, uint32_t n)
{
	b[0] = n >> 24, b[1] = n >> 16, b[2] = n >> 8, b[3] = n;
}

/* field copies the text of a field, which holds no escape in these tests; nothing if it is not there. */
static void field(const char *header, const char *name, char *to, size_t room)
{
	char key[32];
	snprintf(key, sizeof key, "\"%s\":\"", name);
	const char *from = strstr(header, key);
	to[0] = 0;
	if (from == NULL)
		return;
	from += strlen(key);
	size_t size = strcspn(from, "\"");
	if (size >= room)
		_exit(98);
	memcpy(to, from, size);
	to[size] = 0;
}

static void hear(struct heard *h)
{
	static unsigned char *frame;
	unsigned char length[4];
	get(length, 4);
	size_t size = u32(length);
	free(frame);
	if ((frame = malloc(size + 1)) == NULL)
		_exit(97);
	get(frame, size);
	size_t header = u32(frame);
	h->body = (struct bytes){frame + size, 0};
	if (size > header + 8)
		h->body = (struct bytes){frame + header + 8, size - header - 8};
	char *text = strndup((char *)frame + 4, header);
	field(text, "file", h->file, sizeof h->file);
	field(text, "id", h->id, sizeof h->id);
	field(text, "name", h->name, sizeof h->name);
	free(text);
}

/* frame puts a header and at most one segment together. It is never freed: the program is short. */
static struct bytes frame(const char *header, const struct bytes *segment)
{
	size_t n = strlen(header), size = 8 + n + (segment ? 4 + segment->size : 0);
	unsigned char *b = malloc(size);
	set32(b, (uint32_t)size - 4);
	set32(b + 4, (uint32_t)n);
	memcpy(b + 8, header, n);
	if (segment) {
		set32(b + 8 + n, (uint32_t)segment->size);
		memcpy(b + 12 + n, segment->at, segment->size);
	}
	return (struct bytes){b, size};
}

static struct bytes result(const char *id, const char *name, struct bytes body)
{
	char header[1024];
	snprintf(header, sizeof header,
		"{\"type\":\"result\",\"id\":\"%s\",\"phase\":\"handle\",\"name\":\"%s\","
		"\"sends\":[{\"to\":\"out\",\"body\":0}],\"tags\":{\"pid\":\"%d\"}}",
		id, name, (int)getpid());
	return frame(header, &body);
}

static const char *after(const char *id)
{
	static char next[64];
	strcpy(next, id);
	next[31] = "123456789abcdef0"[strchr("0123456789abcdef", id[31]) - "0123456789abcdef"];
	return next;
}

static void rest(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
	nanosleep(&t, NULL);
}

static void linger(void)
{
	for (;;)
		pause();
}

static void spin(void)
{
	for (;;)
		;
}

/* child begins one with a session of its own. */
static pid_t child(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		alarm(LIFETIME);
		setsid();
	}
	return pid;
}

/* grandchild leaves one that was forked twice, has its own session, and holds all that this process has. */
static void grandchild(void)
{
	pid_t pid = child();
	if (pid == 0) {
		if (child() == 0)
			linger();
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

static void pour(size_t size)
{
	char line[1024];
	memset(line, 'x', 1023);
	line[1023] = '\n';
	for (size_t n = 0; n < size / sizeof line; n++)
		put(2, line, sizeof line);
}

static void done(void) { put(2, "done\n", 5); }

static void say(struct bytes b) { put(4, b.at, b.size); }

static void drip(struct bytes b, double pause)
{
	for (size_t i = 0; i < b.size; i++) {
		put(4, b.at + i, 1);
		rest(pause);
	}
}

static struct bytes ready(void)
{
	return frame("{\"type\":\"ready\",\"version\":1,\"sdk\":\"hostile\",\"offers\":[]}", NULL);
}

static void boot(const char *how)
{
	if (strcmp(how, "boot crash") == 0)
		_exit(7);
	if (strcmp(how, "boot for ever") == 0) {
		grandchild();
		linger();
	}
	if (strcmp(how, "boot by signal") == 0)
		raise(SIGKILL);
	if (strcmp(how, "boot over the cap") == 0) {
		put(4, "\xff\xff\xff\xff", 4);
		_exit(0);
	}
}

static void act(const struct heard *r)
{
	struct bytes right = result(r->id, r->name, r->body);
#define IS(what) (strcmp(r->name, what) == 0)
	if (IS("echo"))
		say(right);
	else if (IS("flood")) {
		static char b[64 << 20];
		say(right);
		done();
		put(4, b, sizeof b);
		linger();
	} else if (IS("read nothing more")) {
		say(right);
		linger();
	} else if (IS("read half")) {
		static char b[4 << 20];
		say(right);
		get(b, sizeof b);
		linger();
	} else if (IS("drip"))
		drip(right, 0.001);
	else if (IS("drip slowly"))
		drip(right, 0.02);
	else if (IS("stop"))
		raise(SIGSTOP);
	else if (IS("answer late")) {
		rest(0.7);
		say(right);
	} else if (IS("stage")) {
		struct bytes staged = result(after(r->id), r->name, (struct bytes){(unsigned char *)"staged", 6});
		unsigned char *both = malloc(right.size + staged.size);
		memcpy(both, right.at, right.size);
		memcpy(both + right.size, staged.at, staged.size);
		say((struct bytes){both, right.size + staged.size});
	} else if (IS("answer twice")) {
		pid_t pid = child();
		say(right);
		if (pid == 0)
			_exit(0);
		waitpid(pid, NULL, 0);
		done();
	} else if (IS("close")) {
		close(3);
		close(4);
		linger();
	} else if (IS("leave")) {
		grandchild();
		say(right);
		_exit(0);
	} else if (IS("print binary")) {
		put(1, right.at, right.size);
		put(1, "\x00\x01\xff\xfe\x1b[2J\r\n", 10);
		say(right);
	} else if (IS("pour 64 MiB")) {
		pour(64 << 20);
		say(right);
	} else if (IS("pour 1 GiB")) {
		pour(1 << 30);
		say(right);
	} else if (IS("spin on")) {
		say(right);
		spin();
	} else if (IS("spin"))
		spin();
	else if (IS("spin together")) {
		for (int i = 0; i < 3; i++)
			if (child() == 0)
				spin();
		linger();
	} else if (IS("keep")) {
		char *kept = malloc(192 << 20);
		memset(kept, 1, 192 << 20);
		say(right);
		struct heard next;
		hear(&next);
		act(&next);
		_exit(kept[1000]);
	} else if (IS("over the cap")) {
		put(4, "\xff\xff\xff\xff", 4);
		linger();
	} else if (IS("over the cap and exit")) {
		put(4, "\xff\xff\xff\xff", 4);
		_exit(0);
	} else if (IS("cut and exit")) {
		put(4, right.at, 20);
		_exit(4);
	} else if (IS("wrong id"))
		say(result("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", r->name, r->body));
	else if (IS("zero id"))
		say(result("00000000000000000000000000000000", r->name, r->body));
	else if (IS("next id"))
		say(result(after(r->id), r->name, r->body));
	else if (IS("wrong name"))
		say(result(r->id, "echo", r->body));
	else if (IS("wrong phase")) {
		char header[512];
		snprintf(header, sizeof header, "{\"type\":\"result\",\"id\":\"%s\",\"phase\":\"route\",\"name\":\"%s\",\"handlers\":[]}", r->id, r->name);
		say(frame(header, NULL));
	} else if (IS("ready again"))
		say(ready());
	else if (IS("kill the parent")) {
		kill(getppid(), SIGKILL);
		say(right);
	} else if (IS("peek")) {
		char *path = strndup((char *)r->body.at, r->body.size);
		const char *answer = open(path, O_RDONLY) < 0 ? "refused" : "opened";
		say(result(r->id, r->name, (struct bytes){(unsigned char *)answer, strlen(answer)}));
	} else if (IS("burn")) {
		struct timespec from, now;
		clock_gettime(CLOCK_MONOTONIC, &from);
		do
			clock_gettime(CLOCK_MONOTONIC, &now);
		while ((now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000 < 100);
		say(right);
	} else if (IS("exit"))
		_exit(3);
	else if (IS("signal"))
		raise(SIGKILL);
}

int main(void)
{
	struct heard h;
	alarm(LIFETIME);
	hear(&h);
	if (h.file[0] && unlink(h.file) == 0)
		boot(strrchr(h.file, '/') + 1);
	say(ready());
	for (;;) {
		hear(&h);
		act(&h);
	}
}
