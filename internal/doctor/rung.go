package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/tree"
)

// How long the doctor looks for the end of what should be gone, and of what is not said to be. The second is what a host
// without better costs each time.
const (
	patience = 3 * time.Second
	glance   = 500 * time.Millisecond
)

func lookFor(ctx context.Context, promised bool) time.Duration {
	if promised && ctx.Err() == nil {
		return patience
	}
	return glance
}

// killed is what kill found.
type killed struct {
	refused error // the rung could not be had; everything else is then zero
	level   tree.Level
	facts   tree.Facts
	kill    Kill
	faults  []string
}

// kill starts a hostile tree on a rung, kills it, and looks who is left.
func (d *doctor) kill(ctx context.Context, rung string) (k killed) {
	s, err := newStage()
	if err != nil {
		return killed{refused: err}
	}
	var known []shim.Process
	defer func() { // the last: it may take the tree along
		if fault := s.end(known); fault != "" {
			k.faults = append(k.faults, fault)
		}
	}()
	t, err := tree.Start(ctx, hostile(d.exe, rung, s.token, s.leashed, s.held))
	s.handedOver()
	if err != nil {
		return killed{refused: reason(err)}
	}
	k.level, k.facts = t.Level(), t.Facts()
	there := s.await(ctx)
	report, err := t.Kill(ctx, "doctor")
	k.kill = Kill{Proved: err == nil, Seen: report.Seen, Took: report.Took}
	if err := errors.Join(there, err); err != nil {
		k.kill.Error, k.kill.Proved = err.Error(), false
	}
	if k.kill.Held = s.left(lookFor(ctx, k.level >= tree.Tracked)); k.kill.Held {
		known = marked(s.token)
		k.kill.Escaped = told(known)
	}
	return k
}

// reason takes the rung's own words out of the error.
func reason(err error) error {
	var no *tree.LevelError
	if errors.As(err, &no) && len(no.Tried) == 1 {
		if no.Tried[0].Err != nil {
			return no.Tried[0].Err
		}
		return errors.New(no.Tried[0].Reason)
	}
	return err
}

// died is what hostDeath found.
type died struct {
	death  HostDeath
	faults []string
}

// hostDeath has an engine start a hostile tree, kills the engine, and looks who is left.
func (d *doctor) hostDeath(ctx context.Context, rung string, promised bool) (x died) {
	s, err := newStage()
	if err != nil {
		return died{death: HostDeath{Error: err.Error()}}
	}
	var known []shim.Process
	defer func() {
		if fault := s.end(known); fault != "" {
			x.faults = append(x.faults, fault)
		}
		if err := d.sweep(rung); err != nil {
			x.faults = append(x.faults, fmt.Sprintf("%s: no tree could be started after an engine had been killed: %v", rung, err))
		}
	}()
	engine, err := d.startEngine(ctx, rung, s)
	if err != nil {
		x.death.Error = err.Error()
		return x
	}
	if err := s.await(ctx); err != nil {
		x.death.Error = err.Error()
		end(engine)
		return x
	}
	known = still(union(shim.Descendants(engine.Process.Pid), marked(s.token)))
	known = slices.DeleteFunc(known, func(p shim.Process) bool { return p.Pid == engine.Process.Pid })
	end(engine)
	began := time.Now()
	for limit := lookFor(ctx, promised); ; time.Sleep(time.Millisecond) {
		held := s.left(limit - time.Since(began))
		known = still(known)
		x.death.Waited = time.Since(began)
		if !held && len(known) == 0 {
			return x
		}
		if x.death.Waited >= limit {
			x.death.Survived, x.death.Survivors = true, told(known)
			return x
		}
	}
}

// sweep starts and ends one more tree on the rung. Its start removes what the dead engine may have left, as that of the next
// engine would: an empty cgroup.
func (d *doctor) sweep(rung string) error {
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	spec := hostile(d.exe, rung, "", nil, nil)
	spec.Args = argv(roleDaemon, "sweep") // alone, and without a leash: it ends by itself, at once
	t, err := tree.Start(ctx, spec)
	if err != nil {
		return reason(err)
	}
	_, err = t.Kill(ctx, "doctor")
	return err
}

// startEngine executes this program again to be the engine of a hostile tree, and waits for its word. A nil error means
// that it holds one; the caller then has to end it.
func (d *doctor) startEngine(ctx context.Context, rung string, s *stage) (*exec.Cmd, error) {
	says, say, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer says.Close()
	cmd := exec.Command(d.exe)
	cmd.Args = argv(roleEngine, rung, s.token)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.leashed, say, s.held
	err = cmd.Start()
	say.Close()
	s.handedOver()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() }) // its word then ends
	defer stop()
	var w word
	line, err := bufio.NewReader(io.LimitReader(says, 64<<10)).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &w)
	}
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil:
		err = fmt.Errorf("the engine does not say how its start went: %w", err)
	case w.Error != "":
		err = errors.New(w.Error)
	default:
		return cmd, nil
	}
	end(cmd)
	return nil, err
}

// end kills the engine by the handle that its start gave, and collects it.
func end(engine *exec.Cmd) {
	engine.Process.Kill()
	engine.Wait()
}
