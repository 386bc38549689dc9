package tree

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/internal/victim/observer"
	"golang.org/x/sys/unix"
)

const engineWord = "coppice-engine"

// grace is how long an engine that stops its tree waits between the signal and the cut.
const grace = 50 * time.Millisecond

// started is what an engine says of its tree when it has one, or why it has none.
type started struct {
	Level  string `json:"level"`
	Facts  Facts  `json:"facts"`
	Reason string `json:"reason"`
}

// ended is what an engine says when Kill or Wait has returned.
type ended struct {
	Cause     string `json:"cause"`
	Rung      string `json:"rung"`
	Seen      int    `json:"seen"`
	Named     int    `json:"named"`
	Survivors int    `json:"survivors"`
	Status    Status `json:"status"`
	Error     string `json:"error"` // why there is no proof
	Again     string `json:"again"` // the cause that a second Kill returned
	At        int64  `json:"at"`    // by the monotonic clock, in nanoseconds, once there was the proof
}

// engineMain is, by its arguments (rung, limit of tasks, victim and its arguments), an engine that starts one victim and
// then ends it as it is told, or waits to be killed. Descriptor 3 is the witness, 4 the leader's standard input. It says
// "starting" and "started", each on a line with what it knows as JSON behind; for a line "signal" on standard input it sends
// the victim SIGCONT and says "signalled"; for the name of an end it says "ended". A rung with a + behind it is asked for
// with NoNewPrivileges, which a guard may need.
func engineMain() {
	tracedMain()
	if len(os.Args) < 5 || os.Args[1] != engineWord {
		return
	}
	time.AfterFunc(victim.Lifetime, func() { os.Exit(95) })
	exe, _ := os.Executable()
	tasks, _ := strconv.ParseUint(os.Args[3], 10, 64)
	told, witness := os.NewFile(4, "told"), os.NewFile(3, "witness")
	rung, bare := strings.CutSuffix(os.Args[2], "+")
	speak("starting", nil)
	tree, err := Start(context.Background(), Spec{Path: exe, Args: victim.Args(os.Args[4], os.Args[5:]...), Rung: rung,
		Stdin: told, Extra: []*os.File{witness}, NoNewPrivileges: bare, Limits: Limits{Tasks: tasks}})
	if err != nil {
		speak("started", started{Reason: err.Error()})
		os.Exit(1)
	}
	told.Close()
	witness.Close() // only the tree is seen by it
	speak("started", started{Level: tree.Level().String(), Facts: tree.Facts()})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "signal" {
			tree.Signal(syscall.SIGCONT)
			speak("signalled", nil)
			continue
		}
		speak("ended", end(tree, in.Text()))
	}
	time.Sleep(2 * victim.Lifetime)
}

// end brings the tree to its end, which is awaited for less than the observer's patience.
func end(tree *Tree, how string) (e ended) {
	ctx, cancel := context.WithTimeout(context.Background(), patience-time.Second)
	defer cancel()
	var r Report
	var err error
	switch how {
	case "deadline":
		deadline, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if _, r, err = tree.Wait(deadline); err != nil {
			r, err = tree.Kill(ctx, how)
		}
	case "cancel":
		tree.Cut(how)
		e.Status, r, err = tree.Wait(ctx)
	case "stop":
		tree.Signal(syscall.SIGTERM)
		select {
		case <-tree.Exited():
		case <-time.After(grace):
		}
		r, err = tree.Kill(ctx, how)
	default:
		e.Status, r, err = tree.Wait(ctx)
	}
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	e.At = now.Nano()
	if err != nil {
		e.Error = err.Error()
	}
	again, _ := tree.Kill(ctx, "again")
	e.Cause, e.Rung, e.Seen, e.Named, e.Survivors, e.Again = r.Cause, r.Rung, r.Seen, len(r.Named), len(r.Survivors), again.Cause
	return e
}

func speak(word string, v any) {
	b, _ := json.Marshal(v)
	fmt.Printf("%s %s\n", word, b)
}

// engine is such a process.
type engine struct {
	cmd  *exec.Cmd
	self shim.Process
	said chan string
	ask  *os.File
	told *os.File // closed, it tells the leader to exit
}

// launchEngine starts one as a user, or as this one; its tree's leader stays until told is closed or the engine takes it
// along. end gives back all that it has.
func launchEngine(x *observer.Observer, rung string, uid int, exe string, c victim.Case) (*engine, error) {
	var attr *syscall.SysProcAttr
	if uid != os.Geteuid() {
		attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return launchAs(x, attr, exe, append([]string{engineWord, rung, strconv.FormatUint(c.Tasks, 10), c.Name}, c.Args...)...)
}

// launchAs starts an engine by the arguments that make it.
func launchAs(x *observer.Observer, attr *syscall.SysProcAttr, exe string, args ...string) (*engine, error) {
	var files []*os.File
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		files = append(files, r, w)
	}
	told, hold, in, ask, out, say := files[0], files[1], files[2], files[3], files[4], files[5]
	cmd := exec.Command(exe, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, say, os.Stderr
	cmd.ExtraFiles = []*os.File{x.Hold, told}
	cmd.Dir, cmd.SysProcAttr = "/", attr
	err := cmd.Start()
	for _, f := range []*os.File{told, in, say, x.Hold} {
		f.Close()
	}
	e := &engine{cmd: cmd, said: make(chan string, 16), ask: ask, told: hold}
	go func() {
		defer out.Close()
		defer close(e.said)
		s := bufio.NewScanner(out)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			e.said <- s.Text()
		}
	}()
	if err != nil {
		ask.Close()
		hold.Close()
		return nil, err
	}
	e.self, _ = shim.Read(cmd.Process.Pid)
	return e, nil
}

// hear takes the engine's next word, which has to be this one, and reads what comes with it into v.
func (e *engine) hear(ctx context.Context, word string, v any) error {
	select {
	case line, ok := <-e.said:
		first, rest, _ := strings.Cut(line, " ")
		if !ok {
			return errDead
		}
		if first != word {
			return fmt.Errorf("engine says %q, want %q", line, word)
		}
		if v == nil {
			return nil
		}
		return json.Unmarshal([]byte(rest), v)
	case <-ctx.Done():
		return fmt.Errorf("engine does not say %q: %w", word, context.Cause(ctx))
	}
}

var errDead = errors.New("the engine has died")

// shims are the engine's own children that hold its tree.
func (e *engine) shims() []shim.Process {
	var out []shim.Process
	for _, p := range shim.Descendants(e.cmd.Process.Pid) {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Pid))
		if p.Parent == e.cmd.Process.Pid && strings.HasPrefix(string(args), "coppice-shim\x00") {
			out = append(out, p)
		}
	}
	return out
}

// kill kills it with -9, and returns once it is dead. It is not collected: nobody can collect it as long as a victim
// traces it.
func (e *engine) kill() {
	e.cmd.Process.Kill()
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(100 * time.Microsecond) {
		if now, ok := shim.Read(e.self.Pid); !ok || now.State == 'Z' || now.State == 'X' {
			return
		}
	}
}

// close collects it, after the victims are gone.
func (e *engine) close() {
	e.kill()
	e.cmd.Wait()
	e.cmd.Process.Release() // a tracer may have collected it
	e.ask.Close()
	e.told.Close()
}

// watched is an engine of one test.
type watched struct {
	*engine
	t *testing.T
}

// startEngine starts one that is over with the test.
func startEngine(t *testing.T, x *witness, rung, name string, args ...string) watched {
	t.Helper()
	e, err := launchEngine(x.Observer, rung, os.Geteuid(), executable(t), victim.Case{Name: name, Args: args})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	return watched{e, t}
}

// startEngineIn starts one by the arguments that make it, in a session of its own, and in a cgroup if one is given.
func startEngineIn(t *testing.T, x *witness, cgroup *os.File, args ...string) watched {
	t.Helper()
	attr := &syscall.SysProcAttr{Setsid: true}
	if cgroup != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(cgroup.Fd())
	}
	e, err := launchAs(x.Observer, attr, executable(t), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	return watched{e, t}
}

func (e watched) await(word string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	if err := e.hear(ctx, word, nil); err != nil {
		e.t.Fatal(err)
	}
}
