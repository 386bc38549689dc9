package sandbox

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

const (
	// lastWord is how long a wire that was cut short waits for the worker's exit, to tell a crash from a worker that
	// closed its end; and how long what a dead worker left in its pipes may take to be read.
	lastWord = 100 * time.Millisecond
	// farewell is how long an idle worker that has been asked to end may take.
	farewell = 250 * time.Millisecond
)

// life is one worker from its start to the proof that it is gone. Session.Close and Session.Members use it from any
// goroutine, everything else belongs to whoever has the session's slot.
type life struct {
	spec    *Spec
	tree    *tree.Tree
	link    *tree.Link
	x       exchange
	scratch *confine.Folder
	clear   *clearing // the session's
	output  *output
	began   time.Time
	closing atomic.Bool    // the session is being closed
	acts    sync.WaitGroup // what goes on beside the dispatches

	mu    sync.Mutex
	until time.Time // the end of the wire, once it is known
}

// newLife starts a worker's process. Its code is not loaded yet.
func newLife(ctx context.Context, spec *Spec, clear *clearing) (_ *life, err error) {
	l := &life{spec: spec, clear: clear, began: time.Now()}
	if l.scratch, err = confine.Scratch(spec.Scratch, spec.Name); err != nil {
		return nil, err
	}
	if l.link, err = tree.NewLink(); err != nil {
		l.tidy()
		return nil, err
	}
	l.output = newOutput(spec.Name, spec.Observer.Output)
	err = l.start(ctx)
	l.link.Started()
	if err != nil {
		l.link.Close()
		l.output.finish()
		l.tidy()
		return nil, err
	}
	l.x = exchange{pipe: l.link, caps: wire.DefaultCaps()}
	l.acts.Go(func() {
		// The tree is being cut by then, so that what still lies in the pipe is all that will ever come.
		<-l.tree.Exited()
		l.limit(time.Now().Add(lastWord))
	})
	return l, nil
}

// clearing counts the scratch folders of a session that are being removed.
type clearing struct {
	sync.WaitGroup
	left atomic.Int64
}

// tidy removes the scratch folder, beside whatever comes next: a worker can make one that takes long.
func (l *life) tidy() {
	l.clear.left.Add(1)
	l.clear.Go(func() {
		defer l.clear.left.Add(-1)
		if err := l.scratch.Remove(); err != nil && l.spec.Observer.Litter != nil {
			l.spec.Observer.Litter(l.spec.Name, l.scratch.Path, err)
		}
	})
}

func (l *life) start(ctx context.Context) error {
	stdout, stderr, err := l.output.open()
	if err != nil {
		return err
	}
	defer stdout.Close()
	defer stderr.Close()
	limits := confine.Default()
	l.tree, err = tree.Start(ctx, tree.Spec{
		Path: l.spec.Command[0], Args: l.spec.Command, Dir: l.scratch.Path,
		Env:    confine.Environment(os.Environ(), l.scratch.Path, append(slices.Clone(l.spec.Env), l.link.Env())...),
		Stdout: stdout, Stderr: stderr, Extra: l.link.Files(),
		Level: l.spec.Level, Rung: l.spec.Rung,
		NewSession: true, NoNewPrivileges: true, DropCapabilities: true,
		Limits: tree.Limits{NoCore: true, Files: limits.Files, Data: limits.Data, File: limits.File, Tasks: limits.Tasks},
	})
	return err
}

// limit sets the end of the wire, after which no read or write of it blocks. It is never put off: whoever sets one knows
// that this worker serves no further dispatch.
func (l *life) limit(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until.IsZero() || t.Before(l.until) {
		l.until = t
		l.link.SetDeadline(t)
	}
}

// usable says whether another dispatch may be tried: the worker's command has not ended, and no end of the wire is set.
func (l *life) usable() bool {
	select {
	case <-l.tree.Exited():
		return false
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until.IsZero()
}

// boot has the worker load its code.
func (l *life) boot(ctx context.Context) error {
	var ready *wire.Ready
	err := l.bounded(ctx, func() (err error) {
		ready, err = l.x.boot(l.spec.boot())
		return err
	})
	if err != nil {
		return err
	}
	for _, want := range l.spec.Offers {
		if !slices.Contains(ready.Offers, want) {
			return &HandlerError{wire.Fault{Type: "offer", Text: "the worker does not offer " + string(want.Phase) + " " + want.Name}}
		}
	}
	if f := l.spec.Observer.Started; f != nil {
		f(Started{Session: l.spec.Name, Level: l.tree.Level(), Facts: l.tree.Facts(), Took: time.Since(l.began)})
	}
	return nil
}

// dispatch makes one dispatch. An error that kept does not accept means that this life is over.
func (l *life) dispatch(ctx context.Context, r *Request) (Result, error) {
	l.output.begin(r.Message)
	began := time.Now()
	deadline, _ := ctx.Deadline()
	var answer *wire.Result
	err := l.bounded(ctx, func() (err error) {
		answer, err = l.x.dispatch(r.wire(deadline.Sub(began)))
		return err
	})
	if err != nil {
		return Result{}, err
	}
	return Result{Handlers: answer.Handlers, Sends: answer.Sends, Dropped: answer.Dropped, Drop: answer.Drop,
		Tags: answer.Tags, Took: time.Since(began)}, nil
}

// bounded runs a piece of the protocol under ctx, and judges what went wrong. The end of ctx, or of the worker, ends the
// reads and writes of the piece. An answer that was complete by then stands.
func (l *life) bounded(ctx context.Context, piece func() error) error {
	began := time.Now()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		l.interrupt(ctx)
	})
	err := piece()
	if !stop() {
		<-interrupted
	}
	if kept(err) {
		return err
	}
	var dirty *dirtyError
	if errors.As(err, &dirty) {
		err = dirty.cause
	}
	var j judgement
	if cutShort(err) {
		j.dead, j.status = l.lastWord(ctx)
	}
	j.took, j.closed = time.Since(began), l.closing.Load()
	if dirty != nil && !j.closed {
		dirty.cause = judge(err, j)
		return dirty
	}
	if ctx.Err() != nil {
		j.expired, j.late = context.Cause(ctx), errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	return judge(err, j)
}

// interrupt ends the wire because ctx has ended. The kill looks at the tree first, and the dispatch does not wait for that.
func (l *life) interrupt(ctx context.Context) {
	why := "cancel"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = "deadline"
	}
	l.limit(time.Unix(1, 0))
	l.acts.Go(func() { l.tree.Cut(why) })
}

// lastWord waits a moment for the worker's exit.
func (l *life) lastWord(ctx context.Context) (bool, tree.Status) {
	t := time.NewTimer(lastWord)
	defer t.Stop()
	select {
	case <-l.tree.Exited():
		return true, l.tree.Status()
	case <-t.C:
	case <-ctx.Done():
	}
	return false, tree.Status{}
}

// close begins the end on behalf of Session.Close: an idle worker is asked first.
func (l *life) close(ctx context.Context, idle bool) {
	l.closing.Store(true)
	if idle {
		l.link.CloseWrite()
		t := time.NewTimer(farewell)
		defer t.Stop()
		select {
		case <-l.tree.Exited():
			return
		case <-t.C:
		case <-ctx.Done():
		}
	}
	l.tree.Cut("close")
}
