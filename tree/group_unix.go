//go:build unix

package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// processGroup holds the tree by its process group. What calls setsid or setpgid escapes, so nothing is promised of
// descendants that do; the group itself is proved empty. On Linux a Kill also sweeps up the escapees whose parents lead
// back to the command while it lives; what has forked twice cannot be found any more. On macOS one look after the end of the
// group also kills who still has the tree's mark in its environment.
func processGroup() rung {
	return rung{
		name:  "group",
		loose: standing{Group, Facts{BornInside: true, Transparent: true}},
		start: startGroup,
	}
}

// grouped is a tree that is a process group. Its id is the command's pid, and stays the group's own for as long as the
// command has not been reaped: so the group is killed while the command is a zombie, and never after.
type grouped struct {
	process *os.Process
	mark    string         // an entry of the command's environment, by which its descendants are found; empty where they are not
	stops   chan os.Signal // nil if nobody asks
	done    chan struct{}  // closed when the command has been reaped
	status  Status

	mu     sync.Mutex
	reaped bool
	swept  []Member // escapees that have been killed one by one
}

func startGroup(_ context.Context, s *Spec) (holder, error) {
	files, null, err := s.files()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	attr := &syscall.SysProcAttr{Setsid: s.NewSession, Setpgid: !s.NewSession}
	if s.Foreground != nil {
		attr.Foreground, attr.Ctty = true, int(s.Foreground.Fd())
	}
	env, mark := s.Env, newMark()
	if mark != "" {
		env = append(slices.Clone(env), mark)
	}
	process, err := os.StartProcess(s.Path, s.Args, &os.ProcAttr{Dir: s.Dir, Env: env, Files: files, Sys: attr})
	if err != nil {
		if _, bad := os.Stat(s.Dir); s.Dir != "" && bad != nil {
			// The runtime blames the command. Stat's error has the folder's path.
			return nil, bad
		}
		return nil, err
	}
	g := &grouped{process: process, mark: mark, done: make(chan struct{})}
	if !s.NewSession {
		g.stops = make(chan os.Signal, 1)
	}
	go g.reap()
	return g, nil
}

// reap waits for the command's end, kills its group while the zombie still holds the group's id, and collects it.
func (g *grouped) reap() {
	state, err := g.collect()
	if err == nil {
		ws := state.Sys().(syscall.WaitStatus)
		g.status = Status{Known: true, User: state.UserTime(), System: state.SystemTime()}
		if u, ok := state.SysUsage().(*syscall.Rusage); ok {
			g.status.MaxRSS = int64(u.Maxrss) * maxRSSUnit
		}
		if ws.Signaled() {
			g.status.Signal = ws.Signal()
		} else {
			g.status.Code = ws.ExitStatus()
		}
	}
	close(g.done)
}

func (g *grouped) collect() (*os.ProcessState, error) {
	if err := awaitExit(g.process, g.stops); err != nil {
		state, err := g.process.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reaped = true
		return state, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reaped = true
	syscall.Kill(-g.process.Pid, syscall.SIGKILL)
	return g.process.Wait()
}

func (g *grouped) wait(stopped func(os.Signal)) Status {
	for {
		select {
		case <-g.done:
			return g.status
		case sig := <-g.stops:
			stopped(sig)
		}
	}
}

func (g *grouped) kill() {
	g.mu.Lock()
	if !g.reaped {
		g.swept = append(g.swept, sweep(g.process.Pid)...)
	}
	g.mu.Unlock()
	g.send(syscall.SIGKILL)
}

func (g *grouped) send(sig syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped {
		return os.ErrProcessDone
	}
	// A stopped process dies of SIGKILL all the same, but one under a tracer may need to go on first.
	if sig == syscall.SIGKILL {
		defer syscall.Kill(-g.process.Pid, syscall.SIGCONT)
	}
	return syscall.Kill(-g.process.Pid, sig)
}

// empty looks until the group and those swept up are gone, or all that is left of them are dead whose parents have not
// collected them. Signal 0 is none: it cannot hurt whoever should have the id by then.
func (g *grouped) empty() error {
	<-g.done
	g.mu.Lock()
	swept := g.swept
	g.mu.Unlock()
	if g.mark != "" {
		swept = slices.Concat(swept, sweepMarked(g.mark))
	}
	for pause := 50 * time.Microsecond; ; pause = min(pause*2, 20*time.Millisecond) {
		switch err := syscall.Kill(-g.process.Pid, 0); {
		case errors.Is(err, syscall.ESRCH) && !slices.ContainsFunc(swept, lives):
			return nil
		case errors.Is(err, syscall.ESRCH):
		case err != nil && !errors.Is(err, syscall.EPERM):
			return fmt.Errorf("look at process group %d: %w", g.process.Pid, err)
		case allDead(g.process.Pid) && !slices.ContainsFunc(swept, lives): // or the number is another's
			return nil
		}
		time.Sleep(pause)
	}
}

func (g *grouped) signal(sig os.Signal) error {
	n, ok := sig.(syscall.Signal)
	if !ok || n <= 0 {
		return fmt.Errorf("signal %v: %w", sig, errors.ErrUnsupported)
	}
	return g.send(n)
}

func (g *grouped) alone() bool { return false }

func (g *grouped) guard() error {
	return errors.New("nothing keeps a process from leaving its group, or from killing the engine")
}

func (g *grouped) usage() (Usage, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped {
		return Usage{}, nil
	}
	return sampled(g.process.Pid, true), nil
}

func (g *grouped) members() ([]Member, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped {
		return groupMembers(g.process.Pid, false), nil
	}
	return groupMembers(g.process.Pid, true), nil
}

func (g *grouped) seen() (int, []Member) {
	all, _ := g.members()
	return len(all), all
}
