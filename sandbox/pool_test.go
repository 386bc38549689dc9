package sandbox

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

func program() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// stand is a pool under test, with what it told and what was seen from outside.
type stand struct {
	*Pool
	t     *testing.T
	token string
	out   *outside

	mu    sync.Mutex
	cuts  []Cut
	lines []Line
	began int
}

var tokens atomic.Int64

// pool makes a pool whose workers are the named victim. It is closed at the end of the test, which fails if a process
// of it is still there then.
func pool(t *testing.T, victim string, change ...func(*Spec)) *stand {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("missing: /proc, to look at the victims from outside")
	}
	b := &stand{t: t, token: mark() + strconv.FormatInt(tokens.Add(1), 10)}
	spec := Spec{Name: "test/" + victim, Command: []string{program(), "victim", victim, b.token}, Scratch: t.TempDir(),
		Env: []string{"GORACE=atexit_sleep_ms=0"}} // a program with the race detector takes a second to end otherwise
	spec.Observer = Observer{
		Started: func(Started) { b.mu.Lock(); b.began++; b.mu.Unlock() },
		Cut:     func(c Cut) { b.mu.Lock(); b.cuts = append(b.cuts, c); b.mu.Unlock() },
		Output:  func(l Line) { b.mu.Lock(); b.lines = append(b.lines, l); b.mu.Unlock() },
	}
	for _, f := range change {
		f(&spec)
	}
	s, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	b.Pool, b.out = s, watchOutside(t, b.token)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		b.gone(b.out.all())
		if list, _ := os.ReadDir(spec.Scratch); len(list) > 0 {
			t.Errorf("left in the scratch folder: %v", list)
		}
	})
	return b
}

func onRung(rung string) func(*Spec) { return func(s *Spec) { s.Rung = rung } }

// exited waits until the workers have ended that there are.
func (b *stand) exited() {
	for _, s := range b.living() {
		<-s.worker.Exited()
	}
}

// gone fails the test if one of the processes lives, or one that was never noted.
func (b *stand) gone(list []process) {
	b.t.Helper()
	if left := append(living(list), victims(b.token)...); len(left) > 0 {
		b.t.Errorf("still running: %v", left)
	}
}

func (b *stand) dispatch(name string, message int64, body string, timeout time.Duration) (Result, error) {
	r := Request{Phase: wire.PhaseHandle, Name: name, Message: message, Received: time.Now(), Body: []byte(body)}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if name == "route" {
		r.Phase = wire.PhaseRoute
	}
	return b.Dispatch(ctx, r)
}

// fine makes a dispatch that must go well, and returns the worker's pid as it sees it.
func (b *stand) fine(message int64) string {
	b.t.Helper()
	body := "body " + strconv.FormatInt(message, 10)
	r, err := b.dispatch("echo", message, body, 10*time.Second)
	if err != nil || len(r.Sends) != 1 || string(r.Sends[0].Body) != body {
		b.t.Fatalf("dispatch %d: %v, %v", message, r, err)
	}
	return r.Tags["pid"]
}

func (b *stand) told() ([]Cut, []Line) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.cuts), slices.Clone(b.lines)
}

// rungs runs a test on every rung above the group that this host has for this user.
func rungs(t *testing.T, f func(t *testing.T, rung string)) {
	for _, rung := range tree.Rungs() {
		// One way to a PID namespace will do: root's is the direct one, everybody else's that with a user namespace.
		other := map[bool]string{true: "pidns-user", false: "pidns"}[os.Geteuid() == 0]
		if rung == "group" || strings.HasPrefix(rung, "job") || rung == other {
			continue
		}
		t.Run(rung, func(t *testing.T) {
			started, err := tree.Start(context.Background(), tree.Spec{Path: "/bin/true", Rung: rung})
			if err != nil {
				t.Skipf("missing: rung %s: %v", rung, err)
			}
			started.Kill(context.Background(), "")
			f(t, rung)
		})
	}
}

// as makes a check of an error's type.
func as[E error](check func(E) bool) func(error) bool {
	return func(err error) bool {
		var e E
		return errors.As(err, &e) && check(e)
	}
}

func violation(name string) func(error) bool {
	return as(func(e *ViolationError) bool { return e.Violation.Name == name })
}

func deadline() func(error) bool { return as(func(*DeadlineError) bool { return true }) }

func handlerError(kind string) func(error) bool {
	return as(func(e *HandlerError) bool { return strings.Contains(e.Fault.Type, kind) })
}

const long, short = 10 * time.Second, 500 * time.Millisecond

// TestMisbehaviour: whatever a worker does, the dispatch returns in time with the right error, the blame is right, the next
// dispatch is fine, and of the worker that was cut nothing is left by then.
//
// Red without: tree.Kill in ending.kill ("close", "over the cap", "garbage" live on); limit and Kill in interrupt ("read
// nothing more", "read half" and "late" block until the victim's own end); lastBreath in bounded ("exit", "signal" and "cut" are
// taken for a worker that lives); the exception for a frame that was cut in judge ("cut").
func TestMisbehaviour(t *testing.T) {
	large := strings.Repeat("m", 8<<20)
	for _, c := range []struct {
		victim, name string
		before       string // dispatched before, and fine
		body         string
		timeout      time.Duration
		want         func(error) bool
		blame        Fault
		processes    int // seen from outside at least
	}{
		{victim: "good", name: "error", want: handlerError("errors.errorString"), blame: Message},
		{victim: "good", name: "panic", want: handlerError("panic"), blame: Message},
		{victim: "good", name: "nonsense", want: handlerError("result"), blame: Message},
		{victim: "good", name: "exit", want: as(func(e *CrashError) bool { return e.Status.Code == 3 }), blame: Worker},
		{victim: "good", name: "signal", want: as(func(e *CrashError) bool { return e.Status.Signal == 9 }), blame: Worker},
		{victim: "good", name: "sleep", timeout: short, want: deadline(), blame: Worker},
		{victim: "good", name: "spin", timeout: short, want: deadline(), blame: Worker},
		{victim: "good", name: "stop", timeout: short, want: deadline(), blame: Worker},
		{victim: "good", name: "fork-hang", timeout: 2 * short, want: deadline(), blame: Worker, processes: 2},
		{victim: "good", name: "fork-exit", want: as(func(e *CrashError) bool { return e.Status.Success() }), blame: Worker},
		{victim: "raw", name: "echo", before: "read nothing more", body: large, timeout: short, want: deadline(), blame: Worker},
		{victim: "raw", name: "echo", before: "read half", body: large, timeout: short, want: deadline(), blame: Worker},
		{victim: "raw", name: "drip", timeout: short, want: deadline(), blame: Worker},
		{victim: "raw", name: "late", timeout: short, want: deadline(), blame: Worker},
		{victim: "raw", name: "close", want: violation(wire.Closed), blame: Worker},
		{victim: "raw", name: "over the cap", want: violation(wire.FrameCap), blame: Worker},
		{victim: "raw", name: "garbage", want: violation(wire.HeaderCap), blame: Worker},
		{victim: "raw", name: "cut", want: as(func(e *CrashError) bool { return e.Status.Code == 4 }), blame: Worker},
	} {
		t.Run(c.victim+" "+c.before+" "+c.name, func(t *testing.T) {
			t.Parallel()
			b := pool(t, c.victim)
			if c.before != "" {
				if _, err := b.dispatch(c.before, 1, "", long); err != nil {
					t.Fatal(err)
				}
			} else {
				b.fine(1)
			}
			timeout := c.timeout
			if timeout == 0 {
				timeout = long
			}
			began := time.Now()
			_, err := b.dispatch(c.name, 2, c.body, timeout)
			took := time.Since(began)
			if err == nil || !c.want(err) || Blame(err) != c.blame {
				t.Errorf("got %T %v, blame %v", err, err, Blame(err))
			}
			if late := took - timeout; late > 2*time.Second {
				t.Errorf("returned %v after the deadline", late)
			}
			before := b.out.all()
			if len(before) < c.processes {
				t.Errorf("saw %d processes, the victim has %d", len(before), c.processes)
			}
			b.fine(3)
			if c.blame == Worker {
				if left := living(before); len(left) > 0 {
					t.Errorf("still running behind the next dispatch: %v", left)
				}
				cuts, _ := b.told()
				if len(cuts) != 1 || cuts[0].Message != 2 || cuts[0].Why != err || cuts[0].Err != nil {
					t.Errorf("told of %+v", cuts)
				}
			}
		})
	}
}

// TestRungs runs the worst of them on every rung.
func TestRungs(t *testing.T) {
	rungs(t, func(t *testing.T, rung string) {
		b := pool(t, "good", onRung(rung))
		for message := int64(1); message <= 9; message += 3 {
			b.fine(message)
			name := []string{"fork-hang", "stop", "fork-exit"}[message/3]
			_, err := b.dispatch(name, message+1, "", time.Second)
			if Blame(err) != Worker {
				t.Errorf("%s: %v", name, err)
			}
			before := b.out.all()
			b.fine(message + 2)
			if left := living(before); len(left) > 0 {
				t.Errorf("%s: still running behind the next dispatch: %v", name, left)
			}
		}
	})
}

// TestDirtBetweenDispatches: what is wrong before the request's first byte is charged to no message, and the dispatch goes on
// with a fresh worker. Red without the look in exchange.dispatch ("stage" and "twice" end in violation "id" of message 2),
// without the dirtyError of a refused write ("stop reading" is message 2's crash), and with r.Message given to retire.
func TestDirtBetweenDispatches(t *testing.T) {
	for name, want := range map[string]func(error) bool{
		"stage":           violation(wire.BadOrder),
		"twice":           violation(wire.BadOrder),
		"stop reading":    violation(wire.Closed),
		"answer and exit": func(err error) bool { return err == nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := pool(t, "raw")
			pid := b.pid(name, 1)
			if name == "answer and exit" {
				b.exited() // a moment earlier, the next message pays: nobody can know that it was not read
			}
			before := b.out.all()
			b.fine(2)
			if left := living(before); len(left) > 0 {
				t.Errorf("the worker before still runs: %v (%s)", left, pid)
			}
			if cuts, _ := b.told(); len(cuts) != 1 || cuts[0].Message != 0 || !want(cuts[0].Why) {
				t.Errorf("told of %+v", cuts)
			}
		})
	}
}

func (b *stand) pid(name string, message int64) string {
	b.t.Helper()
	r, err := b.dispatch(name, message, "", long)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.Tags["pid"]
}

// TestLeftBetweenDispatches: a worker that exits by itself takes its grandchildren with it, though nobody calls.
func TestLeftBetweenDispatches(t *testing.T) {
	rungs(t, func(t *testing.T, rung string) {
		b := pool(t, "raw", onRung(rung))
		b.pid("leave", 1)
		eventually(t, "the grandchild's end", func() bool { return len(victims(b.token)) == 0 })
		b.exited() // a process in the middle of its end has lost its name in /proc, and still holds the wire
		b.fine(2)
		if cuts, _ := b.told(); len(cuts) != 1 || cuts[0].Why != nil || cuts[0].Report.Cause != "exit" {
			t.Errorf("told of %+v", cuts)
		}
	})
}

// TestFlood: an idle worker that floods the wire fills its pipe, and no memory of ours. Red when something reads between
// dispatches: the heap grows by what was written.
func TestFlood(t *testing.T) {
	b := pool(t, "raw")
	before := heap()
	b.pid("flood", 1)
	flooder := victims(b.token)
	eventually(t, "the flood", func() bool {
		_, lines := b.told()
		return len(lines) == 1 && lines[0].Text == "flooding"
	})
	eventually(t, "a full pipe", func() bool { _, state := look(flooder[0].pid); return state == "S" })
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	b.fine(2)
	if cuts, _ := b.told(); len(cuts) != 1 || cuts[0].Message != 0 || !violation(wire.BadOrder)(cuts[0].Why) {
		t.Errorf("told of %+v", cuts)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestBoot: a worker that does not become ready costs no message, and leaves nothing. Red without the check of the offers in
// session.boot ("boot lacks").
func TestBoot(t *testing.T) {
	for name, want := range map[string]func(error) bool{
		"boot crash":    as(func(e *CrashError) bool { return e.Status.Code == 7 }),
		"boot for ever": deadline(),
		"boot fail":     handlerError("SyntaxError"),
		"boot lacks":    handlerError("offer"),
		"boot garbage":  violation(wire.FrameShort),
		// Red when the cap of the boot message holds from the first request on only.
		"boot with a frame over its cap": violation(wire.FrameCap),
		"boot and go":                    violation(wire.BadOrder),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := pool(t, name, func(s *Spec) {
				s.FrameCap = 1 << 20
				switch name {
				case "boot for ever":
					s.StartTimeout = time.Second
				case "boot lacks":
					s.Offers = []wire.Offer{{Phase: wire.PhaseHandle, Name: "echo"}}
				}
			})
			for range 2 {
				_, err := b.dispatch("echo", 1, "", 2*long)
				var boot *BootError
				if !errors.As(err, &boot) || !want(err) || Blame(err) != Nobody {
					t.Fatalf("got %T %v, blame %v", err, err, Blame(err))
				}
				if name == "boot crash" && !slices.Equal(boot.Output, []string{"cannot import name 'x'"}) {
					t.Errorf("last lines %q", boot.Output)
				}
				cuts, _ := b.told()
				for _, c := range cuts {
					if c.Message != 0 {
						t.Errorf("charged to message %d", c.Message)
					}
				}
			}
		})
	}
	t.Run("no program", func(t *testing.T) {
		b := pool(t, "good", func(s *Spec) { s.Command = []string{"/nonexistent/program"} })
		_, err := b.dispatch("echo", 1, "", long)
		if !as(func(e *os.PathError) bool { return errors.Is(e, os.ErrNotExist) })(err) || Blame(err) != Nobody {
			t.Errorf("got %T %v", err, err)
		}
	})
	t.Run("no such rung", func(t *testing.T) {
		b := pool(t, "good", onRung("none"))
		if _, err := b.dispatch("echo", 1, "", long); !as(func(*tree.LevelError) bool { return true })(err) {
			t.Errorf("got %T %v", err, err)
		}
	})
}

// TestReuse: nothing runs before it is needed; one worker serves one dispatch after the other.
func TestReuse(t *testing.T) {
	b := pool(t, "good")
	if list := victims(b.token); len(list) > 0 {
		t.Fatalf("New has started %v", list)
	}
	if err := b.Boot(context.Background()); err != nil {
		t.Fatal(err)
	}
	one := victims(b.token)
	pid := b.fine(1)
	for message := int64(2); message <= 200; message++ {
		if now := b.fine(message); now != pid {
			t.Fatalf("dispatch %d: worker %s, it was %s", message, now, pid)
		}
	}
	if now := victims(b.token); len(one) != 1 || !slices.Equal(one, now) {
		t.Errorf("from outside: %v, it was %v", now, one)
	}
	members, err := b.Members()
	if err != nil || len(members) != 1 || members[0].Pid != one[0].pid {
		t.Errorf("members: %v, %v", members, err)
	}
	r, err := b.dispatch("route", 201, "", long)
	if err != nil || !slices.Equal(r.Handlers, []string{"a", "b"}) {
		t.Errorf("route: %v, %v", r, err)
	}
	if b.began != 1 {
		t.Errorf("told of %d starts", b.began)
	}
}

// TestFrameCap: what does not fit is the message's fault, and the worker lives on.
func TestFrameCap(t *testing.T) {
	b := pool(t, "good", func(s *Spec) { s.FrameCap = 1 << 20 })
	pid := b.fine(1)
	_, err := b.dispatch("echo", 2, strings.Repeat("x", 1<<20), long)
	if !as(func(e *TooLargeError) bool { return true })(err) || Blame(err) != Message {
		t.Errorf("got %T %v", err, err)
	}
	_, err = b.dispatch("large", 3, "", long)
	if !handlerError("result")(err) || Blame(err) != Message {
		t.Errorf("got %T %v", err, err)
	}
	if now := b.fine(4); now != pid {
		t.Errorf("worker %s, it was %s", now, pid)
	}
}

// TestLarge: a frame that no pipe holds goes through both ways.
func TestLarge(t *testing.T) {
	b := pool(t, "good")
	body := strings.Repeat("0123456789abcdef", 1<<19)
	r, err := b.dispatch("echo", 1, body, 10*time.Second)
	if err != nil || string(r.Sends[0].Body) != body {
		t.Fatal(err)
	}
}

// TestCancel: the cause is returned, the worker is cut, and nobody is to blame.
func TestCancel(t *testing.T) {
	b := pool(t, "good")
	b.fine(1)
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	changed := errors.New("the configuration has changed")
	time.AfterFunc(100*time.Millisecond, func() { stop(changed) })
	_, err := b.Dispatch(ctx, Request{Phase: wire.PhaseHandle, Name: "sleep", Message: 2})
	if !errors.Is(err, changed) || Blame(err) != Nobody {
		t.Errorf("got %T %v", err, err)
	}
	before := b.out.all()
	b.fine(3)
	if left := living(before); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if _, err := b.Dispatch(ctx, Request{Phase: wire.PhaseHandle, Name: "echo", Message: 4}); !errors.Is(err, changed) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestRefused: what is wrong in itself is refused before anything is sent. Red without utf8.ValidString (the worker's answer
// names another function: a violation) and without filepath.IsAbs.
func TestRefused(t *testing.T) {
	b := pool(t, "good")
	pid := b.fine(1)
	if _, err := b.Dispatch(context.Background(), Request{Phase: wire.PhaseHandle, Name: "echo", Message: 1}); err == nil {
		t.Error("without a deadline: no error")
	}
	for _, r := range []Request{
		{Phase: wire.PhaseHandle, Name: "echo"},
		{Phase: wire.PhaseHandle, Message: 1},
		{Phase: wire.PhaseHandle, Name: "\xff", Message: 1},
		{Phase: "x", Name: "echo", Message: 1},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), long)
		if _, err := b.Dispatch(ctx, r); err == nil || Blame(err) != Nobody {
			t.Errorf("%+v: %v", r, err)
		}
		cancel()
	}
	if now := b.fine(2); now != pid {
		t.Errorf("worker %s, it was %s", now, pid)
	}
	for _, s := range []Spec{
		{},
		{Command: []string{"python3"}},
		{Command: []string{"/x"}, FrameCap: -1},
		{Command: []string{"/x"}, Settings: map[string]any{"x": struct{}{}}},
		{Command: []string{"/x"}, Offers: []wire.Offer{{Phase: wire.PhaseHandle}}},
	} {
		if _, err := New(s); err == nil {
			t.Errorf("%+v: no error", s)
		}
	}
}

// TestLeftover: while the worker before is not proved gone there is no new one, and the next dispatch tries again. Red without
// the wait in seat.proved (a new one is started), and without its call of again (it holds for ever).
func TestLeftover(t *testing.T) {
	b := pool(t, "good", func(s *Spec) { s.KillTimeout = time.Nanosecond })
	b.fine(1)
	if _, err := b.dispatch("fork-hang", 2, "", time.Second); Blame(err) != Worker {
		t.Fatal(err)
	}
	_, err := b.dispatch("echo", 3, "", long)
	if !as(func(e *LeftoverError) bool { return as(func(*tree.SurvivorsError) bool { return true })(e.Err) })(err) || Blame(err) != Nobody {
		t.Fatalf("got %T %v", err, err)
	}
	eventually(t, "a proof", func() bool { _, err = b.dispatch("echo", 4, "", long); return err == nil })
	if cuts, _ := b.told(); len(cuts) != 2 || cuts[0].Err == nil || cuts[1].Err != nil {
		t.Errorf("told of %+v", cuts)
	}
	b.out.note()
	if list := victims(b.token); len(list) != 1 {
		t.Errorf("running: %v", list)
	}
	// The last one is closed under the same time limit.
	b.spec.KillTimeout = 10 * time.Second
}

// TestShimGuarded: a worker of the same user cannot kill the shim above it. Red with GuardShim left out of the subreaper's
// rung.
func TestShimGuarded(t *testing.T) {
	b := pool(t, "good", onRung("subreaper"))
	b.fine(1)
	probe, err := tree.Start(t.Context(), tree.Spec{Path: "/bin/true", Rung: "subreaper", NoNewPrivileges: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := probe.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f := probe.Facts(); !f.Guarded {
		t.Skipf("missing: Landlock that scopes signals: %s", f.Unguarded)
	}
	_, err = b.dispatch("killshim", 2, "", long)
	if !as(func(e *HandlerError) bool { return strings.Contains(e.Fault.Text, "not permitted") })(err) {
		t.Errorf("got %T %v", err, err)
	}
	b.fine(3)
}

// TestEscape: somebody outside can kill a shim that only tracks. Nothing proves its tree gone after that, so the pool
// holds: no second worker beside it, ever. Red without the wait in seat.proved.
func TestEscape(t *testing.T) {
	b := pool(t, "good", onRung("subreaper"))
	b.fine(1)
	escapee := victims(b.token)[0]
	members, err := b.Members()
	if err != nil || len(members) != 1 || members[0].Parent <= 1 {
		t.Fatal(members, err)
	}
	shim, err := os.FindProcess(members[0].Parent)
	if err != nil {
		t.Fatal(err)
	}
	shim.Kill()
	shim.Release()
	eventually(t, "the leftover", func() bool {
		_, err = b.dispatch("echo", 2, "", long)
		return as(func(*LeftoverError) bool { return true })(err)
	})
	for range 2 {
		if _, err := b.dispatch("echo", 3, "", long); !as(func(*LeftoverError) bool { return true })(err) {
			t.Errorf("got %T %v", err, err)
		}
	}
	if err := b.Close(context.Background()); !as(func(*tree.SurvivorsError) bool { return true })(err) {
		t.Errorf("close: %v", err)
	}
	if escapee.alive() {
		self, _ := os.FindProcess(escapee.pid)
		self.Kill()
	}
	eventually(t, "the escapee's end", func() bool { return !escapee.alive() })
	os.RemoveAll(b.life0())
	b.Pool, err = New(Spec{Command: []string{"/x"}}) // for the end of the test
	if err != nil {
		t.Fatal(err)
	}
}

func (b *stand) life0() string { return b.seats[0].cutting.session.worker.folder() }

// TestWorld: a worker sees an allow-list of the environment, and a scratch folder of its own that is gone with it. Red when
// confine.Environment takes every name, or a name twice; and, but for root, without the opening of folders in confine.Remove.
func TestWorld(t *testing.T) {
	t.Setenv("COPPICE_TEST_SECRET", "hunter2")
	t.Setenv("LANG", "C.UTF-8")
	b := pool(t, "good", func(s *Spec) { s.Env = []string{"TOOL=1", "LANG=de_CH.UTF-8"} })
	r, err := b.dispatch("world", 1, "", long)
	if err != nil {
		t.Fatal(err)
	}
	dir, env := r.Tags["dir"], string(r.Sends[0].Body)
	allowed := []string{"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "TMPDIR", "TMP", "TEMP", "TOOL", "PWD"} // Go sets PWD in a process that it starts with Dir
	for _, entry := range strings.Split(env, "\n") {
		name, _, _ := strings.Cut(entry, "=")
		if !slices.Contains(allowed, name) {
			t.Errorf("the worker sees %s", name)
		}
	}
	for _, want := range []string{"TOOL=1", "LANG=de_CH.UTF-8", "HOME=" + dir, "TMPDIR=" + dir} {
		if !slices.Contains(strings.Split(env, "\n"), want) {
			t.Errorf("the worker does not see %s", want)
		}
	}
	if !strings.HasPrefix(dir, b.spec.Scratch) {
		t.Errorf("the worker works in %s", dir)
	}
	// What nobody but root can read is removed all the same: session looks.
	if _, err := b.dispatch("dirty", 2, "", long); err != nil {
		t.Error(err)
	}
}

// TestClose: every way to close ends in time, and nothing is left. What is left is looked for by pool.
func TestClose(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	t.Run("never started", func(t *testing.T) {
		b := pool(t, "good")
		if err := b.Close(ended); err != nil {
			t.Error(err)
		}
		if _, err := b.dispatch("echo", 1, "", long); !errors.Is(err, ErrClosed) {
			t.Errorf("after: %v", err)
		}
		if err := b.Boot(context.Background()); !errors.Is(err, ErrClosed) {
			t.Errorf("after: %v", err)
		}
	})
	t.Run("idle", func(t *testing.T) {
		b := pool(t, "good")
		b.fine(1)
		for range 2 {
			if err := b.Close(context.Background()); err != nil {
				t.Error(err)
			}
			b.gone(b.out.all())
		}
		// By its status, not by the cause: its end of the link may be seen to close before the process is seen to have ended.
		if cuts, _ := b.told(); len(cuts) != 1 || cuts[0].Why != nil || !cuts[0].Status.Success() {
			t.Errorf("a worker that is asked ends by itself: %+v", cuts)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		b := pool(t, "raw")
		b.pid("read nothing more", 1)
		began := time.Now()
		if err := b.Close(context.Background()); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
	t.Run("context ended", func(t *testing.T) {
		b := pool(t, "good")
		b.fine(1)
		if err := b.Close(ended); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	for _, victim := range []string{"good", "boot for ever"} {
		t.Run("under a dispatch to "+victim, func(t *testing.T) {
			b := pool(t, victim)
			got := make(chan error, 1)
			go func() {
				_, err := b.dispatch("sleep", 1, "", 10*time.Second)
				got <- err
			}()
			eventually(t, "a worker", func() bool { return len(victims(b.token)) > 0 })
			began := time.Now()
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					if err := b.Close(context.Background()); err != nil {
						t.Errorf("close: %v", err)
					}
				})
			}
			all.Wait()
			if err := <-got; !errors.Is(err, ErrClosed) || Blame(err) != Nobody {
				t.Errorf("the dispatch: %v", err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("took %v", took)
			}
			b.gone(b.out.all())
		})
	}
}

// TestMany: dispatches, boots, looks and a close from many goroutines, for the race detector.
func TestMany(t *testing.T) {
	b := pool(t, "good")
	var all sync.WaitGroup
	var fine atomic.Int64
	for i := range 8 {
		all.Go(func() {
			for n := range 20 {
				name := "echo"
				if i == 0 && n%7 == 3 {
					name = "exit"
				}
				_, err := b.dispatch(name, int64(n+1), "x", long)
				if err == nil {
					fine.Add(1)
				} else if name == "echo" && !errors.Is(err, ErrClosed) {
					t.Errorf("%s: %v", name, err)
				}
				b.Members()
				if i == 1 && n == 15 {
					b.Close(context.Background())
				}
			}
		})
	}
	all.Wait()
	if fine.Load() == 0 {
		t.Error("not one was fine")
	}
}

// TestWaiting: a dispatch that waits for the one before gives up at its own deadline, and costs that one nothing.
func TestWaiting(t *testing.T) {
	b := pool(t, "good")
	b.fine(1)
	first := make(chan error, 1)
	go func() {
		_, err := b.dispatch("sleep", 2, "", time.Second)
		first <- err
	}()
	eventually(t, "the first to have the seat", func() bool { return len(b.turn) == 1 })
	if _, err := b.dispatch("echo", 3, "", 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || Blame(err) != Nobody {
		t.Errorf("the second: %v", err)
	}
	if err := <-first; !deadline()(err) {
		t.Errorf("the first: %v", err)
	}
}

// TestPrinted: what a worker prints is kept, under the message that it had.
func TestPrinted(t *testing.T) {
	b := pool(t, "good")
	if _, err := b.dispatch("both", 7, "", long); err != nil {
		t.Fatal(err)
	}
	if _, err := b.dispatch("print", 8, "a\x1b[2Jb\tc\u202e\n\xff\r\n"+strings.Repeat("y", 10000)+"\nno end", long); err != nil {
		t.Fatal(err)
	}
	b.Close(context.Background())
	_, lines := b.told()
	want := map[Line]bool{}
	for _, l := range []Line{
		{Stream: "stdout", Message: 7, Text: "to stdout"},
		{Stream: "stderr", Message: 7, Text: "to stderr"},
		{Stream: "stdout", Message: 8, Text: `a\x1b[2Jb` + "\t" + `c\u202e`},
		{Stream: "stdout", Message: 8, Text: `\xff`},
		{Stream: "stdout", Message: 8, Text: strings.Repeat("y", lineCap) + "... (1808 more bytes)"},
		{Stream: "stdout", Message: 8, Text: "no end"},
	} {
		l.Session = "test/good"
		want[l] = true
	}
	for _, l := range lines {
		if !want[l] {
			t.Errorf("unexpected: %+v", l)
		}
		delete(want, l)
	}
	for l := range want {
		t.Errorf("missing: %+v", l)
	}
}

// TestAttribution: what is printed right before an answer is not taken for the next message's, whole lines or not. Red
// without catchUp (lines come under the message after theirs), without the end of a begun line in lines.take (two messages'
// texts make one line), and, with the race detector, without the lock in confine.ReadPrinted.
func TestAttribution(t *testing.T) {
	b := pool(t, "good")
	const messages = 300
	for message := int64(1); message <= messages; message++ {
		if _, err := b.dispatch("print", message, strconv.FormatInt(message, 10), long); err != nil {
			t.Fatal(err)
		}
	}
	b.Close(context.Background())
	_, lines := b.told()
	for _, l := range lines {
		if l.Text != strconv.FormatInt(l.Message, 10) {
			t.Errorf("under message %d: %q", l.Message, l.Text)
		}
	}
	if len(lines) != messages {
		t.Errorf("%d lines of %d", len(lines), messages)
	}
}

// TestPour: 64 MiB on stderr neither block the worker nor fill our memory; what is left out is counted. Red
// without the rate in output.line.
func TestPour(t *testing.T) {
	b := pool(t, "good")
	b.fine(1)
	before := heap()
	if _, err := b.dispatch("pour", 2, "", 15*time.Second); err != nil {
		t.Fatal(err)
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	b.Close(context.Background())
	_, lines := b.told()
	told, dropped := 0, 0
	for _, l := range lines {
		dropped += l.Dropped
		if l.Stream != "" {
			told++
		}
	}
	if told+dropped != 64<<10 || told > 10*lineBurst {
		t.Errorf("told of %d lines and %d left out, it printed %d", told, dropped, 64<<10)
	}
}

// TestSlowObserver: an observer that never returns holds up neither worker nor dispatch nor close. Red when a full queue
// is waited for: the worker blocks in its print, and pays with its deadline.
func TestSlowObserver(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	b := pool(t, "good", func(s *Spec) { s.Observer.Output = func(Line) { <-release } })
	began := time.Now()
	for message := int64(1); message < 4; message++ {
		if _, err := b.dispatch("print", message, strings.Repeat("line\n", 50000), long); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > long {
		t.Errorf("took %v", took)
	}
}

// TestLateAnswer: the answer to a request that has run out of time can never meet the next one.
func TestLateAnswer(t *testing.T) {
	b := pool(t, "raw")
	for message := int64(1); message < 6; message += 2 {
		if _, err := b.dispatch("late", message, "late", 590*time.Millisecond); err != nil && !deadline()(err) {
			t.Fatal(err)
		}
		b.fine(message + 1)
	}
}

func TestBlameOfNothing(t *testing.T) {
	if Blame(nil) != Nobody || Blame(bytes.ErrTooLarge) != Nobody {
		t.Error("nobody is to blame for what is unknown")
	}
}

// TestHeldOpen: where a grandchild escapes the kill, and holds the wire and the pipes that it prints into, neither dispatch nor
// close waits for it. Red without newLife's limit at the worker's exit (the first waits for its deadline), and without
// output.finish's closing of the streams (close hangs).
func TestHeldOpen(t *testing.T) {
	b := pool(t, "good", onRung("group"))
	b.fine(1)
	began := time.Now()
	_, err := b.dispatch("fork-exit", 2, "", 2*long)
	if !as(func(e *CrashError) bool { return e.Status.Success() })(err) || time.Since(began) > long {
		t.Errorf("after %v: %T %v", time.Since(began), err, err)
	}
	b.fine(3)
	if _, err := b.dispatch("fork-hang", 4, "", time.Second); !deadline()(err) {
		t.Errorf("got %T %v", err, err)
	}
	b.fine(5)
	began = time.Now()
	if err := b.Close(context.Background()); err != nil || time.Since(began) > long {
		t.Errorf("close after %v: %v", time.Since(began), err)
	}
	escaped := victims(b.token)
	for _, p := range escaped {
		self, _ := os.FindProcess(p.pid)
		self.Kill()
		self.Release()
	}
	eventually(t, "the end of what escaped", func() bool { return len(living(escaped)) == 0 })
	if len(escaped) != 2 {
		t.Errorf("%d have escaped, not 2: the test shows nothing", len(escaped))
	}
}

// TestAnswerAtTheDeadline: an answer that is complete when its time ends stands, and its worker, whose wire has been ended,
// serves no other message. Red without the look at until in usable: message 2 pays.
func TestAnswerAtTheDeadline(t *testing.T) {
	b := pool(t, "good")
	pid := b.fine(1)
	one := victims(b.token)
	b.seats[0].session.limit(time.Now())
	b.fine(2)
	if one[0].alive() {
		t.Errorf("worker %s still runs", pid)
	}
}
