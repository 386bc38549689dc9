package sandbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// The waits after a start that failed: the first, doubled with each one more, at most the longest.
const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 30 * time.Second
)

// breaker keeps a pool whose workers cannot boot from starting one after the other. After each start that fails it holds for
// a while; the next start after that is the probe.
type breaker struct {
	pool *Pool

	mu    sync.Mutex
	fails int
	err   *BootError // of the last start
	until time.Time
}

// open is why nothing may be started now: nil, or a *BootError.
func (b *breaker) open() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails == 0 || !time.Now().Before(b.until) {
		return nil
	}
	return &BootError{Name: b.err.Name, Err: b.err.Err, Output: b.err.Output, Until: b.until}
}

// wait is how long nothing may be started.
func (b *breaker) wait() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Until(b.until)
}

func (b *breaker) failed(err *BootError) {
	b.mu.Lock()
	d := min(firstBackoff<<min(b.fails, 20), maxBackoff)
	d -= time.Duration(rand.Int64N(int64(d)/10 + 1)) // what failed together does not come back together
	b.fails++
	b.err, b.until = err, time.Now().Add(d)
	told := Held{Session: err.Name, Err: err, Until: b.until, Fails: b.fails}
	b.mu.Unlock()
	if f := b.pool.spec.Observer.Held; f != nil {
		f(told)
	}
}

// complete replaces the error of the last start by one that tells more.
func (b *breaker) complete(err, whole *BootError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == err {
		b.err = whole
	}
}

// ready lets others start: one has. It has still to show that it lasts.
func (b *breaker) ready() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = time.Time{}
}

// healed says that a worker has lasted: it has answered, or rested for a while.
func (b *breaker) healed() {
	b.mu.Lock()
	held := b.fails > 0
	b.fails = 0
	b.mu.Unlock()
	if f := b.pool.spec.Observer.Healed; held && f != nil {
		f(b.pool.spec.Name)
	}
}

// grow starts a worker and makes it ready, unless the breaker is open. A program that is executed for each message is ready when
// it has been started; env is added to what it is told. sit is called with the session once there is one. The session of a
// worker that did not become ready is returned with the error, and is to be ended. Errors are *BootError, or ErrClosed.
func (p *Pool) grow(ctx context.Context, env []string, sit func(*session) (closed bool)) (*session, error) {
	if err := p.breaker.open(); err != nil {
		return nil, err
	}
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, p.spec.StartTimeout)
	defer cancel()
	spec := &p.spec
	if len(env) > 0 {
		told := p.spec
		told.Env = slices.Concat(told.Env, env)
		spec = &told
	}
	s, err := newSession(bounded, spec, p.start, &p.clear)
	if err == nil {
		if sit(s) {
			return s, ErrClosed
		}
		if !spec.Exec {
			err = s.boot(bounded)
		}
	} else if errors.Is(err, context.DeadlineExceeded) {
		err = &DeadlineError{}
	}
	if err == nil {
		p.breaker.ready()
		return s, nil
	}
	if errors.Is(err, ErrClosed) {
		return s, ErrClosed
	}
	var late *DeadlineError
	if errors.As(err, &late) {
		late.After = time.Since(began)
	}
	boot := &BootError{Name: p.spec.Name, Err: err}
	if ctx.Err() == nil { // otherwise whoever asked had too little time, or no patience
		p.breaker.failed(boot)
		if f := p.spec.Observer.Unstarted; s == nil && f != nil {
			f(Unstarted{Session: p.spec.Name, Err: err, At: time.Now(), Steps: []Step{{What: StepStart, At: began}}})
		}
	}
	return s, boot
}

// untilClosed returns a ctx that ends with the pool, too. It costs a goroutine, and is for starts alone.
func (p *Pool) untilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.done:
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
