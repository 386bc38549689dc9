package tree

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"coppice.dev/coppice/internal/cgroup"
	"coppice.dev/coppice/internal/shim"
	"golang.org/x/sys/unix"
)

// cgroupLeaf holds the tree in a cgroup (version 2) of its own below the engine's, into which the command is born
// (CLONE_INTO_CGROUP, Linux 5.7) and which the kernel kills at once (cgroup.kill, 5.14). Who may write to the engine's own
// cgroup can make one: root, or the user to whom it is delegated.
//
// The file alone does not hold a worker that may write to it too: it would move itself elsewhere. Hence the guard, without
// which the rung is tracked only. And its shim stands outside of the cgroup and is a subreaper: it kills the cgroup when the
// engine dies, collects the dead, and whoever left the cgroup is still its descendant.
func cgroupLeaf() rung {
	return rung{
		name:  "cgroup",
		held:  standing{Atomic, Facts{HostDeathSafe: true, BornInside: true, Limited: true}},
		loose: standing{Tracked, Facts{BornInside: true, Transparent: true, Limited: true}},
		start: func(ctx context.Context, s *Spec) (holder, error) {
			mounts, err := cgroup.Mounts()
			if err != nil {
				return nil, &refusal{err}
			}
			l, err := newLeaf()
			if err != nil {
				return nil, &refusal{err}
			}
			h, err := startShim(ctx, s, stage{mode: shim.InCgroup, leaf: l, must: s.Level > Tracked,
				guards: shim.GuardShim | shim.GuardLimits | shim.GuardCgroup, carved: mounts})
			if err != nil {
				l.end()
				return nil, errors.Join(err, l.remove())
			}
			return h, nil
		},
	}
}

// leaf is the cgroup of one tree.
type leaf struct {
	path   string
	folder *os.File
	kill   *os.File // its cgroup.kill, open for writing
}

func newLeaf() (*leaf, error) {
	own, err := cgroup.Own()
	if err != nil {
		return nil, fmt.Errorf("find the engine's own cgroup (version 2): %w", err)
	}
	me, err := cgroup.EngineName()
	if err != nil {
		return nil, err
	}
	sweepLeaves(own.Dir, me)
	l := &leaf{path: filepath.Join(own.Dir, cgroup.LeafPrefix+me+"-"+rand.Text())}
	if err := os.Mkdir(l.path, 0o755); err != nil {
		return nil, err
	}
	if l.folder, err = os.Open(l.path); err == nil {
		l.kill, err = os.OpenFile(filepath.Join(l.path, "cgroup.kill"), os.O_WRONLY, 0)
	}
	if err != nil {
		return nil, errors.Join(err, l.remove())
	}
	return l, nil
}

// sweepLeaves ends what engines have left below the cgroup that died with their shims. Those of another PID namespace
// are left alone, since nobody here can tell whether their engine lives.
func sweepLeaves(own, me string) {
	entries, err := os.ReadDir(own)
	if err != nil {
		return
	}
	namespace, _, _ := strings.Cut(me, "-")
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), cgroup.LeafPrefix)
		fields := strings.Split(name, "-")
		if !ok || !e.IsDir() || len(fields) != 4 || fields[0] != namespace || strings.HasPrefix(name, me+"-") {
			continue
		}
		pid, err := strconv.Atoi(fields[1])
		start, err2 := strconv.ParseUint(fields[2], 10, 64)
		if err != nil || err2 != nil || mayLive(pid, start) {
			continue
		}
		l := &leaf{path: filepath.Join(own, e.Name())}
		if l.kill, err = os.OpenFile(filepath.Join(l.path, "cgroup.kill"), os.O_WRONLY|unix.O_NOFOLLOW, 0); err == nil {
			l.end()
			ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
			l.empty(ctx)
			cancel()
			l.kill.Close()
			l.kill = nil
		}
		l.remove() // what cannot be removed is left for the next one
	}
}

// mayLive says whether a process lives, or cannot be told dead: /proc may hide another user's (hidepid of proc(5)).
func mayLive(pid int, start uint64) bool {
	if _, told := shim.Read(pid); told {
		return shim.Process{Pid: pid, Start: start}.Alive()
	}
	return unix.Kill(pid, 0) != unix.ESRCH
}

// sweepTimeout bounds how long a start waits for what a dead engine has left.
const sweepTimeout = 500 * time.Millisecond

// end kills all that is in it.
func (l *leaf) end() error {
	_, err := l.kill.WriteString("1")
	return err
}

// empty kills until nobody is left in it. More than the first time is needed only if somebody from outside moves a process
// into it.
func (l *leaf) empty(ctx context.Context) error {
	for pause := 50 * time.Microsecond; ; pause = min(pause*2, 20*time.Millisecond) {
		in, err := cgroup.Populated(l.path)
		if err != nil || !in {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		l.end()
	}
}

// remove closes its files and removes the folder with all cgroups that were made below it, the lowest first.
func (l *leaf) remove() error {
	if l.folder != nil {
		l.folder.Close()
	}
	if l.kill != nil {
		l.kill.Close()
	}
	return removeCgroup(l.path, maxCgroupDepth)
}

// maxCgroupDepth is far above what a cgroup below another may be nested here by anybody's use.
const maxCgroupDepth = 64

func removeCgroup(path string, depth int) error {
	if depth == 0 {
		return fmt.Errorf("remove cgroup %s: nested too deep", path)
	}
	err := unix.Rmdir(path)
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.ENOTEMPTY) {
		entries, _ := os.ReadDir(path)
		for _, e := range entries {
			if e.IsDir() {
				removeCgroup(filepath.Join(path, e.Name()), depth-1)
			}
		}
		// A process that is dead and not yet done with its exit keeps the folder for a moment longer.
		for pause := time.Millisecond; pause < 200*time.Millisecond; pause *= 2 {
			if err = unix.Rmdir(path); !errors.Is(err, syscall.EBUSY) {
				break
			}
			time.Sleep(pause)
		}
	}
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

// seen counts the processes that live in it, and reads the first of them. None has made a cgroup below it: the guard forbids
// that.
func (l *leaf) seen() (n int, some []Member) {
	b, err := os.ReadFile(filepath.Join(l.path, "cgroup.procs"))
	if err != nil {
		return 0, nil
	}
	legible := shim.OwnProc()
	for line := range strings.Lines(string(b)) {
		n++
		pid, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
		if err != nil || len(some) == named || !legible {
			continue
		}
		if p, ok := shim.Read(pid); ok && !p.Dead() {
			some = append(some, member(p))
		} else {
			n-- // it has ended since
		}
	}
	return n, some
}

// usage is the kernel's own account: the CPU time that all of it has ever used, and its memory where that controller
// is on.
func (l *leaf) usage(u *Usage) {
	b, err := os.ReadFile(filepath.Join(l.path, "cpu.stat"))
	if err != nil {
		return
	}
	var user, system time.Duration
	found := 0
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "user_usec":
			user, found = time.Duration(n)*time.Microsecond, found+1
		case "system_usec":
			system, found = time.Duration(n)*time.Microsecond, found+1
		}
	}
	if found == 2 {
		u.User, u.System, u.CPUExact = user, system, true
	}
	if b, err := os.ReadFile(filepath.Join(l.path, "memory.current")); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			u.Memory, u.MemoryExact = n, true
		}
	}
}
