package observer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"golang.org/x/sys/unix"
)

// Observer is the outer end of one tree's witness. It is safe for concurrent use.
type Observer struct {
	// Hold is the end to hand to the tree as descriptor victim.Witness. Close it after that, or the pipe never ends.
	Hold *os.File

	inode string
	born  uint64 // when it was made, as /proc counts start times: nobody older can hold the pipe
	eof   chan struct{}

	mu    sync.Mutex
	ready int
	told  []string
	fault string
	count int64
	ended time.Time
	news  chan struct{} // closed, and made anew, with each line
}

// ticks are the nanoseconds of a tick of start times, on every architecture that Go knows (time(7)).
const ticks = 10e6

// maxTold bounds what is kept of a victim's words.
const maxTold = 1000

// New makes one. It lives until the last holder of the pipe has gone.
func New() (*Observer, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	inode, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", w.Fd()))
	if err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	o := &Observer{Hold: w, inode: inode, born: uint64(now.Nano()) / ticks, eof: make(chan struct{}), news: make(chan struct{})}
	go o.read(r)
	return o, nil
}

func (o *Observer) read(r *os.File) {
	defer r.Close()
	for s := bufio.NewScanner(r); s.Scan(); {
		o.take(s.Text())
	}
	o.mu.Lock()
	o.ended = time.Now()
	o.mu.Unlock()
	close(o.eof)
}

func (o *Observer) take(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first, rest, _ := strings.Cut(line, " ")
	switch {
	case line == victim.Ready:
		o.ready++
	case first == victim.Count:
		o.count, _ = strconv.ParseInt(rest, 10, 64)
	case first == victim.Attack && len(o.told) < maxTold:
		o.told = append(o.told, rest)
	case o.fault == "":
		o.fault = line
	}
	close(o.news)
	o.news = make(chan struct{})
}

// Ended is closed when nobody holds the pipe any more.
func (o *Observer) Ended() <-chan struct{} { return o.eof }

// Told are the attacks of which the victims have told, in their words.
func (o *Observer) Told() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.told)
}

// LastCount is the last time that a scribbler has written, by the monotonic clock in nanoseconds.
func (o *Observer) LastCount() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count
}

var errGone = errors.New("all victims ended before they were ready")

// Await waits until n processes have said that they are ready.
func (o *Observer) Await(ctx context.Context, n int) error {
	for {
		o.mu.Lock()
		ready, fault, news := o.ready, o.fault, o.news
		o.mu.Unlock()
		switch {
		case fault != "":
			return fmt.Errorf("victim says %q", fault)
		case ready >= n:
			return nil
		}
		select {
		case <-news:
		case <-o.eof:
			o.mu.Lock()
			ready = o.ready
			o.mu.Unlock()
			if ready < n {
				return errGone
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d processes are ready: %w", ready, n, context.Cause(ctx))
		}
	}
}

// ErrUnsettled: all processes of the victim are ready, but they have not come to where its Case says. Where the victim is
// PID 1 of a namespace, it cannot stop itself.
var ErrUnsettled = errors.New("not settled")

// settling bounds how long a victim takes from ready to settled.
const settling = victim.Lifetime / 5

// Settle waits until the victim has come to where its Case says, so that an end finds all of it. An attack may have
// ended the victim itself before that; then there is nothing to wait for.
func (o *Observer) Settle(ctx context.Context, c victim.Case) error {
	if err := o.Await(ctx, c.Ready); err != nil {
		if c.Attacks && errors.Is(err, errGone) {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	for pause := time.Millisecond; c.Holders > 0; pause = min(2*pause, 10*time.Millisecond) {
		have := o.victims()
		settled := len(have) == c.Holders
		for _, p := range have {
			settled = settled && (c.State == 0 || p.State == c.State)
		}
		if settled {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %d processes hold the pipe, want %d in state %q", ErrUnsettled, len(have), c.Holders, c.State)
		case <-time.After(pause): // no event tells of it
		}
	}
	return nil
}

// Holders are the processes other than this one that have the pipe open, from one read of /proc. What is dead has nothing
// open; but a process whose main thread alone has ended is alive in others.
func (o *Observer) Holders() []shim.Process {
	return o.holders(func(int) bool { return true })
}

// victims are the holders that execute this very program: a tool that starts them may hold the pipe as well.
func (o *Observer) victims() []shim.Process {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return nil
	}
	return o.holders(func(pid int) bool {
		exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
		return err != nil || sameSize(exe, self) // a process without its main thread shows no file
	})
}

// sameSize takes a copy for the same program.
func sameSize(a, b os.FileInfo) bool { return os.SameFile(a, b) || a.Size() == b.Size() }

func (o *Observer) holders(ours func(pid int) bool) []shim.Process {
	var out []shim.Process
	for _, p := range shim.All() {
		if p.Pid == os.Getpid() || p.Dead() || p.Start < o.born {
			continue
		}
		dir := fmt.Sprintf("/proc/%d", p.Pid)
		if p.State == 'Z' {
			tasks, _ := filepath.Glob(dir + "/task/[0-9]*")
			if slices.ContainsFunc(tasks, o.heldBy) {
				out = append(out, p)
			}
			continue
		}
		if o.heldBy(dir) && ours(p.Pid) {
			out = append(out, p)
		}
	}
	return out
}

func (o *Observer) heldBy(dir string) bool {
	fds, _ := os.ReadDir(dir + "/fd")
	return slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		target, _ := os.Readlink(dir + "/fd/" + fd.Name())
		return target == o.inode
	})
}

// unseen bounds the search for who holds a pipe that does not end.
const unseen = time.Second

// Outlive waits for the end of the pipe and returns nobody, or, when ctx ends before that, who still holds it: at least
// one, even if it cannot be seen who.
func (o *Observer) Outlive(ctx context.Context) (survivors []shim.Process, at time.Time) {
	select {
	case <-o.eof:
	case <-ctx.Done():
	}
	for limit := time.Now().Add(unseen); ; {
		select {
		case <-o.eof:
			o.mu.Lock()
			defer o.mu.Unlock()
			return nil, o.ended
		case <-time.After(time.Millisecond): // the last may be about to end
			if survivors = o.Holders(); len(survivors) == 0 {
				survivors = o.newest()
			}
			if len(survivors) > 0 {
				return survivors, time.Now()
			}
		}
		if time.Now().After(limit) {
			return []shim.Process{{Name: "unseen"}}, time.Now()
		}
	}
}

// Clear closes the observer's own end and kills, each by its identity, whoever holds the pipe, until nobody does.
func (o *Observer) Clear(ctx context.Context) error {
	o.Hold.Close()
	for {
		select {
		case <-o.eof:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("victims are left that cannot be killed: %+v", o.Holders())
		case <-time.After(time.Millisecond):
		}
		for _, p := range o.Holders() {
			p.Kill()
		}
		for range 30 {
			o.chase()
		}
	}
}

// chase kills who holds the pipe among those born last.
func (o *Observer) chase() {
	for _, p := range o.newest() {
		p.Kill()
	}
}

// newest are the holders among those born last: what hops is gone again by the time that all of /proc is read.
func (o *Observer) newest() (out []shim.Process) {
	b, err := os.ReadFile("/proc/sys/kernel/ns_last_pid")
	if err != nil {
		return nil
	}
	last, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	for pid := last; pid > max(last-32, 1); pid-- {
		if target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, victim.Witness)); target != o.inode || pid == os.Getpid() {
			continue
		}
		if p, ok := shim.Read(pid); ok {
			out = append(out, p)
		}
	}
	return out
}
