package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/internal/victim/observer"
)

// torture goes through victims and ends, one after the other.
func torture(ctx context.Context, o *options, tell func(done, total int, name string)) ([]observer.Outcome, error) {
	cases, err := chosen(o)
	if err != nil {
		return nil, err
	}
	dir, exe, err := copyForAll()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var out []observer.Outcome
	total := len(cases) * len(o.ends)
	for _, c := range cases {
		for _, end := range o.ends {
			tell(len(out), total, c.Name+", "+end)
			x, err := persist(ctx, o, exe, c, end)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", c.Name, end, err)
			}
			out = append(out, x)
		}
	}
	tell(total, total, "")
	if !slices.ContainsFunc(out, func(x observer.Outcome) bool { return x.Skipped == "" }) {
		return nil, fmt.Errorf("no victim comes up under this tool: %s", out[0].Note)
	}
	return out, nil
}

// attempts is how often a victim is started that does not come up: on a busy host the tool's own deadline may be quicker.
const attempts = 3

// persist is one, if need be more than once; a victim that does not come up at all has no outcome.
func persist(ctx context.Context, o *options, exe string, c victim.Case, end string) (x observer.Outcome, err error) {
	for range attempts {
		if x, err = one(ctx, o, exe, c, end); ctx.Err() != nil {
			return x, context.Cause(ctx)
		}
		if !errors.Is(err, errNotUp) {
			return x, err
		}
	}
	x.Skipped, x.Note = "not up", err.Error()
	return x, nil
}

var errNotUp = errors.New("the victim does not come up")

func chosen(o *options) ([]victim.Case, error) {
	cases, err := victim.Cases()
	if err != nil || len(o.victims) == 0 {
		return cases, err
	}
	for _, name := range o.victims {
		if !slices.ContainsFunc(cases, func(c victim.Case) bool { return c.Name == name }) {
			return nil, fmt.Errorf("no victim %q", name)
		}
	}
	return slices.DeleteFunc(cases, func(c victim.Case) bool { return !slices.Contains(o.victims, c.Name) }), nil
}

// copyForAll is this program where every user may execute it.
func copyForAll() (dir, exe string, err error) {
	if dir, err = os.MkdirTemp("", "coppice-torture"); err != nil {
		return "", "", err
	}
	exe = filepath.Join(dir, "victim")
	in, err := os.Open("/proc/self/exe")
	if err == nil {
		defer in.Close()
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(exe, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755); err == nil {
			_, err = io.Copy(f, in)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		os.RemoveAll(dir)
	}
	return dir, exe, err
}

// settling bounds the start of one victim, and then the clearing away of what is left of it.
const settling = victim.Lifetime / 2

// one runs one victim to one end. Nothing of it, or of the tool, is there when it returns.
func one(ctx context.Context, o *options, exe string, c victim.Case, end string) (out observer.Outcome, err error) {
	out = observer.Outcome{Victim: c.Name, End: end}
	if end == "exit" && c.Stays {
		out.Skipped = "its leader is stopped"
		return out, nil
	}
	x, err := observer.New()
	if err != nil {
		return out, err
	}
	t, err := start(o, x.Hold, exe, c)
	if err != nil {
		return out, errors.Join(err, clearUp(x))
	}
	defer func() { err = errors.Join(err, t.end(x)) }()
	settle, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	if err := x.Settle(settle, c); err != nil && !errors.Is(err, observer.ErrUnsettled) {
		return out, fmt.Errorf("%w: %w", errNotUp, err)
	}
	t.tree = append(shim.Descendants(t.self.Pid), x.Holders()...)
	if !t.self.Alive() && c.Attacks {
		out.Note = "the victim killed the tool"
	} else if now, ok := shim.Read(t.self.Pid); ok && (now.State == 'T' || now.State == 't') && c.Attacks {
		out.Note = "the victim stopped the tool"
	}
	begun := t.bring(ctx, end, o.deadline)
	left, at := outlive(ctx, x, o.patience)
	if len(left) == 0 && at.Sub(t.born) >= victim.Lifetime {
		return out, fmt.Errorf("%w in time: it may have ended by itself", errNotUp)
	}
	for _, p := range left {
		out.Left = append(out.Left, p.Name)
	}
	out.Took, out.Told = max(at.Sub(begun), 0), x.Told()
	return out, nil
}

// outlive waits until nobody is left, or until for the whole of patience nobody more has ended: on a busy host three hundred
// take their time to die.
func outlive(ctx context.Context, x *observer.Observer, patience time.Duration) (left []shim.Process, at time.Time) {
	for before := math.MaxInt; ; before = len(left) {
		limit, cancel := context.WithTimeout(ctx, patience)
		left, at = x.Outlive(limit)
		cancel()
		if len(left) == 0 || len(left) >= before || ctx.Err() != nil {
			return left, at
		}
	}
}

// started is a tool with its victim.
type started struct {
	cmd   *exec.Cmd
	self  shim.Process
	stdin io.Closer // closed, it tells the leader to exit
	born  time.Time
	tree  []shim.Process // what was seen of it and the victim
}

func start(o *options, witness *os.File, exe string, c victim.Case) (*started, error) {
	words := append([]string{exe}, victim.Args("carried", append([]string{c.Name}, c.Args...)...)[1:]...)
	argv := slices.Clone(o.tool)
	if i := slices.Index(argv, "{}"); i >= 0 {
		argv = slices.Replace(argv, i, i+1, words...)
	} else {
		argv = append(argv, words...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	// In a session of its own: a tool that signals its process group shall not hit this one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if o.uid != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.uid)}
	}
	cmd.Dir, cmd.Env, cmd.Stdout = "/", []string{"PATH=" + os.Getenv("PATH"), "HOME=/"}, witness
	r, w, err := os.Pipe() // not StdinPipe: its end is not to wait for anybody
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd.Stdin = r
	t := &started{cmd: cmd, stdin: w, born: time.Now()}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	witness.Close()
	t.self, _ = shim.Read(cmd.Process.Pid)
	return t, nil
}

// bring brings the end about and returns when it began.
func (t *started) bring(ctx context.Context, end string, deadline time.Duration) time.Time {
	now := time.Now()
	switch end {
	case "exit":
		t.stdin.Close()
	case "term":
		t.cmd.Process.Signal(syscall.SIGTERM)
	case "kill":
		t.cmd.Process.Kill()
	case "deadline":
		due := t.born.Add(deadline)
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(due)):
		}
		return due
	}
	return now
}

// end kills the tool and what was seen of its tree, each by its identity, and then whoever still holds the pipe.
func (t *started) end(x *observer.Observer) error {
	t.cmd.Process.Kill()
	for _, p := range t.tree {
		p.Kill()
	}
	err := clearUp(x)
	t.stdin.Close()
	t.cmd.Wait() // at last: a victim that traces it keeps it from being collected
	return err
}

func clearUp(x *observer.Observer) error {
	ctx, cancel := context.WithTimeout(context.Background(), settling)
	defer cancel()
	return x.Clear(ctx)
}
