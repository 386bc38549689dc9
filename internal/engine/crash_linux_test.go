package engine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/sandbox"
)

// TestKill kills the engine with -9 at random moments under load, and starts it again. None of what was acknowledged is lost,
// nothing arrives elsewhere, each lane keeps the order of receipt, what arrives twice is only the one delivery of a lane that was
// in progress at a kill, and the books (dispositions, deliveries, counts) are what the receivers saw and what the messages were
// made for. COPPICE_KILLS says how often, COPPICE_SEED repeats a run.
//
// Seen red with a delivery recorded before it is sent (lost), with a message acknowledged before it is committed (lost), and
// with a lane read from its newest place (order).
func TestKill(t *testing.T) {
	w := newWorld(t, "COPPICE_KILLS", 4)
	w.place(t, t.TempDir())
	for range w.rounds {
		w.round(t, func(c *childEngine) { c.kill() })
	}
	w.settle(t)
}

// TestPowerCut cuts the power at random moments under load: the engine is stopped in its tracks, what has reached its disk
// by then is kept, as a copy of the file behind the loop device, and everything that had not is lost with the old one. The same
// holds as after a kill. COPPICE_CUTS says how often.
//
// Seen red with synchronous=NORMAL in writerPragmas (lost), and without the fsync of a file outbound (a file is empty).
func TestPowerCut(t *testing.T) {
	w := newWorld(t, "COPPICE_CUTS", 2)
	d := newDisk(t)
	w.place(t, filepath.Join(d.mounted, "feed"))
	d.sync(t)
	for range w.rounds {
		w.round(t, func(c *childEngine) {
			if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			d.copy(t)
			c.kill()
			d.swap(t)
		})
	}
	w.settle(t)
}

// childEngine is an engine in a process of its own, to be killed.
type childEngine struct {
	cmd   *exec.Cmd
	in    io.WriteCloser // its end stops the engine
	out   *bufio.Reader
	addrs map[string]string // by inbound
	once  sync.Once
}

func startChild(t *testing.T, dir string) *childEngine {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &childEngine{cmd: exec.Command(exe, "engine", dir), addrs: map[string]string{}}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	c.out = bufio.NewReader(out)
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("engine did not start: %v", err)
	}
	for _, field := range strings.Fields(line) {
		name, addr, _ := strings.Cut(field, "=")
		c.addrs[name] = addr
	}
	return c
}

func (c *childEngine) kill() {
	c.once.Do(func() {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
}

// world is what is around the engines: senders, receivers, and what they know.
type world struct {
	rounds    int
	random    *rand.Rand
	dir       string
	down      atomic.Bool // outbound slow is
	receivers map[string]*receiverOf
	sent      map[string]int // by inbound: acknowledged
}

func newWorld(t *testing.T, rounds string, usually int) *world {
	t.Helper()
	w := &world{rounds: usually, receivers: map[string]*receiverOf{}, sent: map[string]int{}}
	if n, err := strconv.Atoi(os.Getenv(rounds)); err == nil {
		w.rounds = n
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("COPPICE_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("COPPICE_SEED=%d %s=%d", seed, rounds, w.rounds)
	w.random = rand.New(rand.NewPCG(seed, 0))
	moods := rand.New(rand.NewPCG(seed, 1)) // under the receivers' locks, one after the other
	var mu sync.Mutex
	for _, name := range []string{"emr", "audit", "slow"} {
		r, err := newReceiverOf(func() bool {
			mu.Lock()
			defer mu.Unlock()
			return moods.IntN(20) == 0 || name == "slow" && w.down.Load()
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		w.receivers[name] = r
	}
	return w
}

// place writes the configuration.
func (w *world) place(t *testing.T, dir string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w.dir = dir
	write(t, filepath.Join(dir, "coppice.toml"), fmt.Sprintf(worldTOML, exe, w.receivers["emr"].Addr(), w.receivers["audit"].Addr(), w.receivers["slow"].Addr()))
}

// round is one life of an engine, under load, to a random moment of its end.
func (w *world) round(t *testing.T, end func(*childEngine)) {
	t.Helper()
	child := startChild(t, w.dir)
	life := time.Duration(50+w.random.IntN(900)) * time.Millisecond
	w.down.Store(w.random.IntN(2) == 0)
	dead := make(chan struct{})
	var senders sync.WaitGroup
	sent := make(map[string]*int, len(child.addrs))
	for name, addr := range child.addrs {
		n := w.sent[name]
		sent[name] = &n
		senders.Go(func() { feed(t, addr, &n, dead) })
	}
	half := time.AfterFunc(life/2, func() { w.down.Store(!w.down.Load()) })
	time.Sleep(life) // the random moment is the point
	end(child)
	half.Stop()
	close(dead)
	senders.Wait()
	for name, n := range sent {
		w.sent[name] = *n
	}
}

// feed sends messages from number n on until the engine dies, and leaves in n the number of the first one that was not
// acknowledged: it is sent again, as a sender does.
func feed(t *testing.T, addr string, n *int, dead <-chan struct{}) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := mllp.Dial(ctx, addr)
	if err != nil {
		return // killed before that
	}
	defer client.Close()
	pace := time.NewTicker(3 * time.Millisecond) // what the handlers keep up with
	defer pace.Stop()
	for {
		ack, err := client.Exchange(ctx, numberedMessage(*n))
		if err != nil {
			return
		}
		if ack.Code != hl7.AA {
			t.Errorf("answered with %s", ack.Code)
			return
		}
		*n++
		select {
		case <-dead:
			return
		case <-pace.C:
		}
	}
}

// settle runs an engine until nothing is under way, and holds the books against what arrived.
func (w *world) settle(t *testing.T) {
	t.Helper()
	w.down.Store(false)
	e := serve(t, w.dir, Options{})
	var all int64
	for _, in := range e.cfg.Inbounds {
		client := dial(t, e.Addr(in.Name))
		for range 20 {
			exchange(t, client, numberedMessage(w.sent[in.Name]))
			w.sent[in.Name]++
		}
		all += int64(w.sent[in.Name])
	}
	counts := drained(t, e, all)
	b := &books{world: w, want: map[string][]arrival{}, counts: map[message.Disposition]int64{}}
	b.read(t, e.Store())
	for d, n := range counts {
		if n != b.counts[d] {
			t.Errorf("the store counts %d %s, and has %d", n, d, b.counts[d])
		}
	}
	for _, out := range e.cfg.Outbounds {
		if out.Name == "archive" {
			b.checkFiles(t, out.File.Dir)
		} else {
			b.check(t, out.Name)
		}
	}
	t.Logf("%v acknowledged, %v received by the engine, %v; repeats: %v", w.sent, b.received, counts, b.repeats)
}

// drained waits until the engine has n messages and none of them is under way, for as long as it gets on with them.
func drained(t *testing.T, e *served, n int64) map[message.Disposition]int64 {
	t.Helper()
	left := int64(-1)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(patience); ; <-tick.C {
		counts, err := e.Store().Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all int64
		for _, c := range counts {
			all += c
		}
		under := counts[message.Received] + counts[message.Routed]
		switch {
		case all >= n && under == 0:
			return counts
		case under != left:
			left, limit = under, time.Now().Add(patience)
		case time.Now().After(limit):
			t.Fatalf("the engine does not get on: %v", counts)
		}
	}
}

// books are what the store has, as it is to be.
type books struct {
	*world
	received map[string]int       // by inbound
	want     map[string][]arrival // by outbound, in order of receipt
	counts   map[message.Disposition]int64
	repeats  map[string]int // by outbound
	files    map[string]arrival
}

// read reads every message and its deliveries, and compares with what the message was made for.
func (b *books) read(t *testing.T, r store.Reader) {
	t.Helper()
	b.received, b.repeats, b.files = map[string]int{}, map[string]int{}, map[string]arrival{}
	seen := map[string]bool{}
	var list []message.Message
	for q := (store.Query{Limit: 1000}); ; q.Before = list[len(list)-1].ID {
		page, err := r.Messages(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		list = append(list, page...)
	}
	for _, m := range slices.Backward(list) { // oldest first
		parts, end := destiny(m.Inbound, numberOf(m.ControlID))
		b.received[m.Inbound]++
		b.counts[m.Disposition]++
		seen[m.Inbound+m.ControlID] = true
		if m.Disposition != end {
			t.Errorf("message %d is %s, not %s: %s", m.ID, m.Disposition, end, m.Reason)
		}
		tl, err := r.Timeline(t.Context(), m.ID)
		if err != nil {
			t.Fatal(err)
		}
		var done, want []string
		for _, d := range tl.Deliveries {
			if d.State == message.Delivered {
				done = append(done, d.Outbound+" by "+d.Handler)
				if d.Outbound == "archive" {
					b.files[d.Name()+".hl7"] = arrival{m.ID, m.Inbound, d.Outbound, part{d.Outbound, d.Handler, 0}}
				}
			}
		}
		for _, p := range parts {
			want = append(want, p.outbound+" by "+p.handler)
			b.want[p.outbound] = append(b.want[p.outbound], arrival{m.ID, m.Inbound, p.outbound, p})
		}
		slices.Sort(done)
		slices.Sort(want)
		if !slices.Equal(done, want) {
			t.Errorf("message %d is delivered to %q, and should be to %q", m.ID, done, want)
		}
	}
	for inbound, n := range b.sent {
		for i := range n {
			if !seen[inbound+fmt.Sprintf("N%06d", i)] {
				t.Errorf("message %d of %s was acknowledged and is lost", i, inbound)
			}
		}
		if extra := b.received[inbound] - n; extra < 0 || extra > b.rounds {
			t.Errorf("%s has %d messages, of %d that were sent, in %d rounds", inbound, b.received[inbound], n, b.rounds)
		}
	}
}

// check holds what one receiver has against the books, lane by lane.
func (b *books) check(t *testing.T, outbound string) {
	t.Helper()
	arrivals, bad := b.receivers[outbound].got()
	for _, what := range bad {
		t.Errorf("%s: %s", outbound, what)
	}
	for _, inbound := range []string{"adt", "lab", "orm"} {
		var want []arrival
		for _, a := range b.want[outbound] {
			if a.inbound == inbound {
				want = append(want, a)
			}
		}
		next := 0
		for _, a := range arrivals {
			switch {
			case a.outbound != outbound:
				t.Fatalf("%s got what was for %s: %+v", outbound, a.outbound, a)
			case a.inbound != inbound:
			case next < len(want) && a == want[next]:
				next++
			case next > 0 && a == want[next-1]:
				b.repeats[outbound]++
			default:
				t.Fatalf("%s got %+v out of order: after %+v", outbound, a, want[max(next-1, 0)])
			}
		}
		if next != len(want) {
			t.Errorf("%s got %d deliveries of %s, and should have %d", outbound, next, inbound, len(want))
		}
	}
	if b.repeats[outbound] > b.rounds {
		t.Errorf("%s got %d deliveries twice, in %d rounds", outbound, b.repeats[outbound], b.rounds)
	}
}

// checkFiles holds the files of the file outbound against the books: each is there, whole, once.
func (b *books) checkFiles(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, e := range entries {
		want, ok := b.files[e.Name()]
		if !ok {
			if strings.HasPrefix(e.Name(), ".") {
				continue // what was being written at a crash
			}
			t.Errorf("file %s is of no delivery", e.Name())
			continue
		}
		found++
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if a, err := parseArrival(text); err != nil || a != want {
			t.Errorf("file %s is %+v (%v), and should be %+v", e.Name(), a, err, want)
		}
	}
	if found != len(b.files) || found != len(b.want["archive"]) {
		t.Errorf("%d files, %d deliveries, %d that should be", found, len(b.files), len(b.want["archive"]))
	}
}

// image is an ext4 file system, with a journal, in a file.
type image struct {
	file    string
	mounted string
}

func newDisk(t *testing.T) *image {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("missing: root, to mount a file system")
	}
	dir := t.TempDir()
	d := &image{file: filepath.Join(dir, "image"), mounted: filepath.Join(dir, "disk")}
	err := os.WriteFile(d.file, nil, 0o600)
	if err == nil {
		err = os.Truncate(d.file, 1<<30)
	}
	if err == nil {
		err = os.Mkdir(d.mounted, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", d.file).CombinedOutput(); err != nil {
		t.Skipf("missing: mkfs.ext4: %v %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", d.file, d.mounted).CombinedOutput(); err != nil {
		t.Skipf("missing: loop devices: %v %s", err, out)
	}
	t.Cleanup(func() { d.unmount(t) })
	return d
}

func (d *image) unmount(t *testing.T) {
	var out []byte
	var err error
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) { // a dead process may hold it for a moment
		if out, err = exec.Command("umount", d.mounted).CombinedOutput(); err == nil {
			return
		}
	}
	t.Errorf("umount: %v %s", err, out)
}

// sync has everything that was written until now reach the disk.
func (d *image) sync(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("sync", "-f", d.mounted).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

// copy keeps what is on the disk now.
func (d *image) copy(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("cp", "--sparse=always", d.file, d.file+".cut").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

// swap puts the copy in the place of the disk.
func (d *image) swap(t *testing.T) {
	t.Helper()
	d.unmount(t)
	if err := os.Rename(d.file+".cut", d.file); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-o", "loop", d.file, d.mounted).CombinedOutput(); err != nil {
		t.Fatalf("the disk cannot be mounted after the cut: %v %s", err, out)
	}
}

// runChild serves a folder until it is killed, or its stdin ends, and says on stdout where. To each line of stdin it answers
// with its figures.
func runChild(dir string) {
	cfg, err := config.Load(dir, os.LookupEnv)
	if err == nil {
		var cuts atomic.Int64
		var e *Engine
		o := Options{Sandbox: sandbox.Observer{Cut: func(sandbox.Cut) { cuts.Add(1) }}}
		if e, err = Open(context.Background(), cfg, o); err == nil {
			for _, in := range cfg.Inbounds {
				fmt.Printf("%s=%s ", in.Name, e.Addr(in.Name))
			}
			fmt.Println()
			ctx, stop := context.WithCancel(context.Background())
			go func() {
				defer stop()
				for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
					sayFigures(e, cuts.Load())
				}
			}()
			if err = e.Run(ctx); err == nil {
				os.Exit(0)
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
