package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/cgroup"
	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/internal/victim/observer"
)

// ends are the ways in which a tree comes to its end: the engine's own three, the leader's, and those that nobody asked for.
var ends = []string{"deadline", "cancel", "stop", "exit", "engine", "shim"}

const nobody = 65534

// escaping is how long the matrix waits where nothing is promised: what still lives then has escaped.
func escaping() time.Duration {
	if full() {
		return time.Second
	}
	return 200 * time.Millisecond
}

func full() bool { return os.Getenv("COPPICE_MATRIX") == "full" }

// TestMatrix runs victims through ends on every rung that the user has, as root and as another user, each time with an
// engine of its own, and prints what an outside observer saw. What a tree's level and facts promise has to hold; elsewhere
// the table says what escapes. COPPICE_MATRIX=full runs every victim through every end; otherwise each through one, and
// the daemon through all.
//
// Red with shimmed.kill returning at once (deadline, cancel); with beginCut("exit") removed (exit); with the engine's pidfd
// and the end of the socket left out of shim.watch (engine); without CLONE_NEWPID (every end); with the body of ignore removed
// (killer, on pidns-user: elsewhere the guard stands before it); with Dead looking at the state alone (leaderless, on a
// subreaper); with clone3 left out of the guard's filter (mover, on a cgroup).
func TestMatrix(t *testing.T) {
	cases, err := victim.Cases()
	if err != nil {
		t.Fatal(err)
	}
	exe := copyForAll(t)
	users := []int{os.Geteuid()}
	if users[0] == 0 {
		users = append(users, nobody)
	}
	for _, uid := range users {
		t.Run(fmt.Sprintf("uid%d", uid), func(t *testing.T) {
			m := &matrix{t: t, uid: uid, exe: exe, canary: newCanary(t, uid)}
			for i, rung := range Rungs() {
				m.run(i, rung, cases)
			}
			t.Logf("as uid %d\n%s", uid, m.table.String())
		})
	}
}

// copyForAll is this program where every user may execute it.
func copyForAll(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "coppice")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "tree.test")
	if err := errors.Join(os.Chmod(dir, 0o755), copyFile(bin, executable(t))); err != nil {
		t.Fatal(err)
	}
	return bin
}

// newCanary is somebody else's process of the same user, which lives through every end. It is over with this process at
// the latest.
func newCanary(t *testing.T, uid int) shim.Process {
	t.Helper()
	in, hold := pipe(t)
	cmd := exec.Command("/bin/cat")
	cmd.Stdin = in
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		hold.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the canary: %v", err)
		}
	})
	p, ok := shim.Read(cmd.Process.Pid)
	if !ok {
		t.Fatal("no canary")
	}
	return p
}

// matrix is that of one user.
type matrix struct {
	t      *testing.T
	uid    int
	exe    string
	canary shim.Process
	table  bytes.Buffer
}

// run is one rung's part: a table of its own.
func (m *matrix) run(nth int, rung string, cases []victim.Case) {
	m.t.Run(rung, func(t *testing.T) {
		t.Helper()
		probe := &cell{rung: rung, Case: cases[0], end: "cancel"}
		probe.run(m)
		if probe.started.Reason != "" {
			fmt.Fprintf(&m.table, "%s\n\n", probe.started.Reason)
			t.Skipf("missing: rung %s: %s", rung, probe.started.Reason)
		}
		var outcomes []observer.Outcome
		for i, c := range cases {
			for j, end := range ends {
				if !wanted(nth+i+j, c.Name) {
					continue
				}
				x := &cell{rung: rung, Case: c, end: end}
				outcomes = append(outcomes, x.run(m))
				for _, fault := range append(x.judge(), m.look()...) {
					t.Errorf("%s, %s: %s", c.Name, end, fault)
				}
			}
		}
		f := probe.started.Facts
		fmt.Fprintf(&m.table, "%s: %s, host-death-safe %v, guarded %v %s\n", rung, probe.started.Level, f.HostDeathSafe, f.Guarded, f.Unguarded)
		observer.Print(&m.table, ends, outcomes)
		fmt.Fprintln(&m.table)
	})
}

// wanted picks what the short form runs: each victim on each rung, by ends that take turns; and the daemon by all.
func wanted(turn int, name string) bool { return full() || name == "daemon" || turn%len(ends) == 0 }

// look sees to the canary.
func (m *matrix) look() []string {
	if now, ok := m.canary.Now(); !ok || now.State != 'S' && now.State != 'R' {
		return []string{fmt.Sprintf("the canary, %+v, is now %+v", m.canary, now)}
	}
	return nil
}

// cell is one victim on one rung and its one end, and what was seen of it.
type cell struct {
	victim.Case
	rung, end string

	born    time.Time
	started started
	ended   *ended         // nil if the engine had no chance to say it
	note    string         // what the victim did to the engine
	left    []shim.Process // who survived
	undead  []shim.Process // there at the moment of the proof, dead or alive
	told    []string
	last    int64 // when a scribbler wrote last
	faults  []string
}

// run takes a victim to its end. Nothing of it is left after that, if need be by force.
func (c *cell) run(m *matrix) observer.Outcome {
	out := observer.Outcome{Victim: c.Name, End: c.end}
	x, err := observer.New()
	if err != nil {
		m.t.Fatal(err)
	}
	c.born = time.Now()
	e, err := launchEngine(x, c.rung, m.uid, m.exe, c.Case)
	if err != nil {
		m.t.Fatal(err)
	}
	var seen []shim.Process
	defer func() { c.clear(m, x, e, seen) }()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience) // and as much again for the end: a victim's lifetime in all
	defer cancel()
	if err := errors.Join(e.hear(ctx, "starting", nil), e.hear(ctx, "started", &c.started)); err != nil && !c.Attacks {
		c.fault("%v", err)
	}
	shims := e.shims()
	seen = shims
	if c.started.Reason != "" || c.end == "exit" && c.Stays || c.end == "shim" && len(shims) == 0 {
		out.Skipped = "there is no such end"
		return out
	}
	if err := x.Settle(ctx, c.Case); err != nil {
		c.fault("%v", err)
	}
	tree := x.Holders()
	seen = append(tree, shims...)
	begun := time.Now()
	c.act(m.t.Context(), e, shims)
	if c.ended != nil {
		c.undead = slices.DeleteFunc(slices.Clone(tree), func(p shim.Process) bool { _, there := p.Now(); return !there })
		if c.end == "shim" {
			// Its dead may be left to the host's init, whenever that collects them, and the init of a namespace that the
			// victim made is there until the last of its own has gone: it holds nothing any more.
			c.undead = x.Holders()
		}
	}
	out.Took = max(c.observe(m, x, seen).Sub(begun), 0) // it may have been over before
	for _, p := range c.left {
		out.Left = append(out.Left, p.Name)
	}
	out.Note, out.Told = c.note, c.told
	return out
}

func (c *cell) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

func (c *cell) clear(m *matrix, x *observer.Observer, e *engine, seen []shim.Process) {
	e.kill()
	for _, p := range seen {
		p.Kill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := x.Clear(ctx); err != nil {
		m.t.Error(err)
	}
	e.close()
}

// act brings the end about. An attack may have been quicker: an engine that is dead, or that cannot do anything any more,
// has come to its own.
func (c *cell) act(ctx context.Context, e *engine, shims []shim.Process) {
	now, _ := shim.Read(e.self.Pid)
	switch {
	case now.State == 'T' || now.State == 't':
		c.note = "the victim stopped its engine, which was then killed"
		e.kill()
		return
	case c.end == "engine":
		e.kill()
		return
	case c.end == "exit":
		e.told.Close()
	case c.end == "shim":
		for _, p := range shims {
			p.Kill()
		}
	}
	limit := patience
	if c.Attacks { // an engine that is held will never say it
		limit = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	fmt.Fprintln(e.ask, c.end)
	var said ended
	switch err := e.hear(ctx, "ended", &said); {
	case err == nil:
		c.ended = &said
		return
	case !c.Attacks:
		c.fault("%v", err)
	case errors.Is(err, errDead):
		c.note = "the victim killed its engine"
	default:
		c.note = "the victim held its engine, which was then killed"
	}
	e.kill()
}

// observe waits until nobody is left, or until whoever is has escaped, and returns when that was.
func (c *cell) observe(m *matrix, x *observer.Observer, seen []shim.Process) time.Time {
	limit := escaping()
	if c.promised() {
		limit = patience
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), limit)
	defer cancel()
	left, at := x.Outlive(ctx)
	c.left = left
	if len(left) == 0 && at.Sub(c.born) >= victim.Lifetime {
		c.fault("it took %v, and may have ended by itself: this host is too busy", at.Sub(c.born))
	}
	if len(left) == 0 {
		for _, p := range seen { // the shims among them, which hold no pipe
			for p.Alive() && ctx.Err() == nil {
				time.Sleep(time.Millisecond) // no event tells of it
			}
			if p.Alive() {
				c.left = append(c.left, p)
			}
		}
	}
	c.told, c.last = x.Told(), x.LastCount()
	return at
}

// promised says whether level and facts promise that nobody survives this end.
func (c *cell) promised() bool {
	safe, atomic := c.started.Facts.HostDeathSafe, c.started.Level == Atomic.String()
	switch {
	case c.end == "engine" || c.note != "":
		return safe
	case c.end == "shim":
		return atomic
	}
	return safe || atomic
}

// judge returns every promise that was broken.
func (c *cell) judge() []string {
	if c.promised() && len(c.left) > 0 {
		c.fault("%d survive: %+v", len(c.left), c.left)
	}
	for _, line := range c.told {
		if strings.HasSuffix(line, " "+victim.Through) && c.guards(line) {
			c.fault("guarded, and yet let through: %s", line)
		}
	}
	if c.rung == "group" && c.Name == "daemon" && c.end != "shim" && len(c.left) == 0 {
		c.fault("a daemon does not survive without anything that holds it: the observer sees nothing")
	}
	if c.ended != nil {
		c.judgeReport(*c.ended)
	}
	return c.faults
}

// guards says whether the tree's guard has to refuse the attack.
func (c *cell) guards(attack string) bool {
	what, whom, _ := strings.Cut(strings.TrimSuffix(attack, " "+victim.Through), " ")
	switch what {
	case "kill", "stop", "trace", "rewrite", "starve", "choke":
		return c.started.Facts.Guarded
	case "bear", "mount":
		return c.started.Facts.Guarded && c.rung == "cgroup"
	case "move": // to hierarchies of the first version, which hold nothing, it may
		return c.started.Facts.Guarded && c.rung == "cgroup" && whom == cgroup2()
	}
	return false
}

func cgroup2() string {
	if mounts, err := cgroup.Mounts(); err == nil && len(mounts) > 0 {
		return mounts[0]
	}
	return ""
}

// judgeReport holds what the engine said against what was seen.
func (c *cell) judgeReport(e ended) {
	tracked := c.started.Level != Group.String()
	switch {
	case e.Error != "" && c.promised():
		c.fault("promised, but: %s", e.Error)
	case e.Error == "" && tracked && len(c.left)+len(c.undead) > 0:
		c.fault("proved empty, and yet there are %+v, %+v", c.left, c.undead)
	case e.Error == "" && tracked && c.last > e.At:
		c.fault("written %v after the proof", time.Duration(c.last-e.At))
	}
	if e.Rung != c.rung || e.Named != min(e.Seen, named) || e.Again != e.Cause || e.Survivors > 0 && e.Error == "" {
		c.fault("report %+v", e)
	}
	if c.Name == "leaver" || c.Attacks {
		return // may be over before its end
	}
	if want := map[string]string{"exit": "exit", "deadline": "deadline", "cancel": "cancel"}[c.end]; want != "" && e.Cause != want {
		c.fault("cause %q", e.Cause)
	}
	if c.end == "exit" && (!e.Status.Known || e.Status.Code != 3) {
		c.fault("status %+v", e.Status)
	}
	if c.Holders > 0 && tracked && (c.end == "cancel" || c.end == "deadline") && e.Seen != c.Holders {
		c.fault("%d seen, want %d", e.Seen, c.Holders)
	}
}
