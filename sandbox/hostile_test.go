package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// hostility is one behaviour of the program hostile: what its request, message 2, comes to, and what is said of its worker.
type hostility struct {
	name    string
	before  string           // dispatched before, and fine; message 2 then asks for the echo of a body that no pipe holds
	timeout time.Duration    // of message 2; long if it is 0
	limits  Limits           // of the pool
	want    func(error) bool // message 2's error, for which its worker is cut; nil if it is answered right
	// idle is what the worker is cut for after a right answer, once event has come, and no message pays. Nil says that it is
	// the worker of message 3, too.
	idle  func(error) bool
	event func(*stand)
	// processes are seen from outside, at least.
	processes int
}

func crash(check func(tree.Status) bool) func(error) bool {
	return as(func(e *CrashError) bool { return check(e.Status) })
}

func limit(name string) func(error) bool {
	return as(func(e *LimitError) bool { return e.Limit == name && e.Used > e.Most && e.Most > 0 })
}

func byItself(err error) bool { return err == nil }

// printed waits for the word by which a victim says that it has done what it was to do.
func (b *stand) printed() {
	b.t.Helper()
	eventually(b.t, "the victim's word", func() bool {
		_, lines := b.told()
		return len(lines) > 0 && lines[len(lines)-1].Text == "done"
	})
}

func (b *stand) wasCut() {
	b.t.Helper()
	eventually(b.t, "a cut", func() bool { cuts, _ := b.told(); return len(cuts) > 0 })
}

var hostilities = []hostility{
	// Time.
	{name: "drip"}, // slow, and honest
	{name: "drip slowly", timeout: short, want: deadline()},
	{name: "answer late", timeout: short, want: deadline()},
	{name: "stop", timeout: short, want: deadline()},
	{name: "echo", before: "read nothing more", timeout: short, want: deadline()},
	{name: "echo", before: "read half", timeout: short, want: deadline()},
	// What is on the wire that no request has asked for.
	{name: "stage", idle: violation(wire.BadOrder), event: func(*stand) {}},
	{name: "answer twice", idle: violation(wire.BadOrder), event: (*stand).printed},
	// Answers to other requests.
	{name: "wrong id", want: violation(wire.BadID)},
	{name: "zero id", want: violation(wire.BadID)},
	{name: "next id", want: violation(wire.BadID)},
	{name: "wrong phase", want: violation(wire.BadPhase)},
	{name: "wrong name", want: violation(wire.BadName)},
	{name: "ready again", want: violation(wire.BadOrder)},
	// Ends, and what looks like one.
	{name: "close", want: violation(wire.Closed)},
	{name: "exit", want: crash(func(s tree.Status) bool { return s.Code == 3 })},
	{name: "signal", want: crash(func(s tree.Status) bool { return s.Signal == 9 })},
	{name: "cut and exit", want: crash(func(s tree.Status) bool { return s.Code == 4 })},
	{name: "over the cap", want: violation(wire.FrameCap)},
	{name: "over the cap and exit", want: violation(wire.FrameCap)},
	{name: "leave", idle: byItself, event: (*stand).exited},
	{name: "kill the parent"},
	// What it prints.
	{name: "print binary"},
	{name: "pour 64 MiB", limits: Limits{Output: -1}},
	{name: "pour 1 GiB", want: limit(LimitOutput)},
	// What it uses.
	{name: "spin", limits: Limits{CPU: 300 * time.Millisecond}, want: limit(LimitCPU)},
	{name: "spin together", limits: Limits{CPU: 300 * time.Millisecond}, want: limit(LimitCPU), processes: 4},
	{name: "spin on", limits: Limits{IdleCPU: 200 * time.Millisecond}, idle: limit(LimitIdleCPU), event: (*stand).wasCut},
	{name: "keep", limits: Limits{Memory: 128 << 20}, idle: limit(LimitMemory), event: (*stand).wasCut},
}

// TestHostile: whatever a worker does, in whatever language, the dispatch returns in time with the right error, the right one is
// to blame, the message behind it is served right by the same program, and of the worker that was cut nothing is left by then.
//
// Red without:
//   - the limit and the cut in session.stop: "drip slowly", "stop", "read nothing more" and "read half" end with the victim;
//   - Binding.Check: the answers to other requests are taken;
//   - the look in exchange.dispatch: "stage" and "answer twice" cost message 3;
//   - a rung above the group: "leave" leaves its grandchild;
//   - complete bytes that are judged as such, with frame-cap in cutShort: "over the cap and exit" is a crash, "over the cap" is "closed";
//   - the call of over in output.read, watchCPU in session.dispatch, either comparison behind rest.look: what it prints, and uses;
//   - the wire's descriptors of their own (the answers on stdout): "print binary" forges one.
func TestHostile(t *testing.T) {
	inEachLanguage(t, func(t *testing.T, command []string) {
		for _, h := range hostilities {
			t.Run(strings.TrimSpace(h.before+" "+h.name), func(t *testing.T) {
				if h.limits.CPU == 0 && h.limits.IdleCPU == 0 { // those that spin take the cores that others need to end in time
					t.Parallel()
				}
				h.run(t, command)
			})
		}
	})
}

// inEachLanguage runs a test with the command of the program hostile, in each language that is here.
func inEachLanguage(t *testing.T, f func(t *testing.T, command []string)) {
	t.Run("Go", func(t *testing.T) { f(t, []string{program(), "victim", "hostile"}) })
	t.Run("Python", func(t *testing.T) { f(t, []string{python(t), "-I", "-S", "-B", source(t, "hostile.py")}) })
	t.Run("C", func(t *testing.T) { f(t, []string{compiled(t, source(t, "hostile.c"))}) })
}

func source(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(path); err != nil { // read, so that go test knows what the test depends on
		t.Fatal(err)
	}
	return path
}

// python is the interpreter itself, not a launcher in front of it.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("missing: python3")
	}
	out, err := exec.Command(path, "-I", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func compiled(t *testing.T, source string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("missing: cc")
	}
	to := filepath.Join(t.TempDir(), "hostile")
	if out, err := exec.Command(cc, "-O1", "-Wall", "-o", to, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return to
}

// hostilePool is a pool of the program in one of its languages.
func hostilePool(t *testing.T, command []string, change func(*Spec)) *stand {
	t.Helper()
	b := pool(t, "hostile", func(s *Spec) {
		token := s.Command[len(s.Command)-1]
		s.Command = append(append([]string(nil), command...), token)
		change(s)
	})
	return b
}

func (h *hostility) run(t *testing.T, command []string) {
	b := hostilePool(t, command, func(s *Spec) { s.Limits = h.limits })
	body := "body 2"
	if h.before != "" {
		b.pid(h.before, 1)
		body = strings.Repeat("m", 8<<20)
	} else {
		b.fine(1)
	}
	if h.name == "kill the parent" && !b.guarded() {
		t.Skip("missing: a shim that its worker cannot kill")
	}
	timeout := h.timeout
	if timeout == 0 {
		timeout = 2 * long
	}
	b.out.note()
	began := time.Now()
	r, err := b.dispatch(h.name, 2, body, timeout)
	if late := time.Since(began) - timeout; late > 2*time.Second {
		t.Errorf("returned %v after the deadline", late)
	}
	switch {
	case h.want == nil && (err != nil || len(r.Sends) != 1 || string(r.Sends[0].Body) != body):
		t.Fatalf("got %+v, %v", r, err)
	case h.want != nil && (err == nil || !h.want(err) || Blame(err) != Worker):
		t.Errorf("got %T %v, blame %v", err, err, Blame(err))
	}
	if h.event != nil {
		h.event(b)
	}
	before := b.out.all()
	if len(before) < max(h.processes, 1) {
		t.Errorf("saw %v from outside, the victim has %d processes", before, max(h.processes, 1))
	}
	b.fine(3)
	h.judge(b, before, err)
}

// judge holds what was told of the cut, and what runs, against what the behaviour is to come to.
func (h *hostility) judge(b *stand, before []process, err error) {
	b.t.Helper()
	cuts, lines := b.told()
	left := living(before)
	if h.want == nil && h.idle == nil {
		if len(cuts) != 0 || len(left) != 1 {
			b.t.Errorf("told of %+v, running: %v", cuts, left)
		}
	} else {
		if len(left) > 0 {
			b.t.Errorf("still running behind the next dispatch: %v", left)
		}
		if len(cuts) != 1 || cuts[0].Err != nil ||
			h.want != nil && (cuts[0].Message != 2 || cuts[0].Why != err) ||
			h.idle != nil && (cuts[0].Message != 0 || !h.idle(cuts[0].Why)) {
			b.t.Errorf("told of %+v", cuts)
		}
	}
	for _, l := range lines {
		if strings.ContainsAny(l.Text, "\x00\x01\x1b\r\n") || !utf8.ValidString(l.Text) {
			b.t.Errorf("told of a line that is not safe to print: %q", l.Text)
		}
	}
}

// guarded says whether the worker cannot kill what holds it.
func (b *stand) guarded() bool {
	for _, s := range b.living() {
		if f := s.worker.Facts(); f.Guarded || s.worker.Level() == tree.Atomic {
			return true
		}
	}
	return false
}

// TestHostileFlood: a worker that rests and floods the wire fills its pipe, and no memory of ours. The heap is everybody's, so
// nothing runs beside it. Red when something reads between dispatches: it grows by 64 MiB.
func TestHostileFlood(t *testing.T) {
	inEachLanguage(t, func(t *testing.T, command []string) {
		b := hostilePool(t, command, func(*Spec) {})
		b.fine(1)
		before := heap()
		b.pid("flood", 2)
		flooder := victims(b.token)
		b.printed()
		asleep := 0 // in so many looks at it, one after the other: it waits for somebody to read, or all has been read
		eventually(t, "a full pipe", func() bool {
			asleep++
			if _, state := look(flooder[0].pid); state != "S" {
				asleep = 0
			}
			return asleep > 50
		})
		if grown := heap() - before; grown > 1<<20 {
			t.Errorf("the heap has grown by %d bytes", grown)
		}
		b.fine(3)
		if cuts, _ := b.told(); len(cuts) != 1 || cuts[0].Message != 0 || !violation(wire.BadOrder)(cuts[0].Why) {
			t.Errorf("told of %+v", cuts)
		}
		if left := living(flooder); len(left) > 0 {
			t.Errorf("still running: %v", left)
		}
	})
}

// TestHostileBoot: a worker that does not become ready costs no message, whatever it did, and the next start serves it. Red
// without the *BootError in Blame: the message is blamed.
func TestHostileBoot(t *testing.T) {
	inEachLanguage(t, func(t *testing.T, command []string) {
		for how, want := range map[string]func(error) bool{
			"boot crash":        crash(func(s tree.Status) bool { return s.Code == 7 }),
			"boot by signal":    crash(func(s tree.Status) bool { return s.Signal == 9 }),
			"boot for ever":     deadline(),
			"boot over the cap": violation(wire.FrameCap),
		} {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), how)
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				b := hostilePool(t, command, func(s *Spec) {
					s.File = file
					if how == "boot for ever" {
						s.StartTimeout = 2 * time.Second
					}
				})
				_, err := b.dispatch("echo", 1, "", long)
				if !as(func(e *BootError) bool { return want(e.Err) })(err) || Blame(err) != Nobody {
					t.Fatalf("got %T %v, blame %v", err, err, Blame(err))
				}
				before := b.out.all()
				// Nothing is started for a moment after a start that went wrong.
				eventually(t, "another start", func() bool { _, err := b.dispatch("echo", 1, "", long); return err == nil })
				b.fine(2)
				if left := living(before); len(left) > 0 {
					t.Errorf("still running: %v", left)
				}
				if cuts, _ := b.told(); len(cuts) != 1 || cuts[0].Message != 0 || !want(cuts[0].Why) {
					t.Errorf("told of %+v", cuts)
				}
			})
		}
	})
}

// TestCPUIsOfOneDispatch: a worker that uses little for each of many messages is not cut for what it used in its life. Red
// without the w.used.sum = 0 of cpuWatch's first look.
func TestCPUIsOfOneDispatch(t *testing.T) {
	inEachLanguage(t, func(t *testing.T, command []string) {
		b := hostilePool(t, command, func(s *Spec) { s.Limits.CPU = 600 * time.Millisecond })
		for message := int64(1); message <= 12; message++ {
			if _, err := b.dispatch("burn", message, "", long); err != nil {
				t.Fatalf("message %d: %v", message, err)
			}
		}
		if cuts, _ := b.told(); len(cuts) != 0 {
			t.Errorf("told of %+v", cuts)
		}
	})
}

// TestEngineIsClosed: a worker of the same user opens neither the engine's environment nor its memory, as /proc offers them. Red
// without DropCapabilities in hosted.start, as root.
func TestEngineIsClosed(t *testing.T) {
	inEachLanguage(t, func(t *testing.T, command []string) {
		b := hostilePool(t, command, func(*Spec) {})
		b.fine(1)
		if !b.guarded() {
			t.Skip("missing: Landlock, or a namespace, to keep the worker off the engine")
		}
		for file, want := range map[string]string{"environ": "refused", "mem": "refused", "stat": "opened"} {
			path := fmt.Sprintf("/proc/%d/%s", os.Getpid(), file)
			r, err := b.dispatch("peek", 2, path, long)
			if err != nil || string(r.Sends[0].Body) != want {
				t.Errorf("%s: %+v, %v; want %s", path, r, err, want)
			}
		}
	})
}
