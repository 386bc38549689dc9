package sandbox

import (
	"context"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// channel is one direction of a wire in memory. Its reader and its writer are on two sides of a Pool's seam; a deadline is the
// engine's and bounds whichever side the engine has.
type channel struct {
	mu       sync.Mutex
	change   sync.Cond
	bytes    []byte
	eof      bool // nobody writes any more
	deaf     bool // nobody reads any more
	deadline time.Time
}

// channelSize is what a channel holds, as a pipe does.
const channelSize = 64 << 10

func newChannel() *channel {
	c := &channel{}
	c.change.L = &c.mu
	return c
}

func (c *channel) update(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.change.Broadcast()
}

func (c *channel) expired() bool { return !c.deadline.IsZero() && !time.Now().Before(c.deadline) }

func (c *channel) read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.expired():
			return 0, os.ErrDeadlineExceeded
		case len(c.bytes) > 0:
			n := copy(b, c.bytes)
			c.bytes = c.bytes[n:]
			c.change.Broadcast()
			return n, nil
		case c.deaf:
			return 0, os.ErrClosed
		case c.eof:
			return 0, io.EOF
		}
		c.change.Wait()
	}
}

func (c *channel) write(b []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(b) > 0 {
		switch {
		case c.expired():
			return n, os.ErrDeadlineExceeded
		case c.eof:
			return n, os.ErrClosed
		case c.deaf:
			return n, syscall.EPIPE
		case len(c.bytes) < channelSize:
			part := min(len(b), channelSize-len(c.bytes))
			c.bytes = append(c.bytes, b[:part]...)
			b, n = b[part:], n+part
			c.change.Broadcast()
			continue
		}
		c.change.Wait()
	}
	return n, nil
}

// fake is a child in memory. Its program is a function that may do whatever it likes on its ends of the wire.
type fake struct {
	down, up *channel // to the child, from the child
	exited   chan struct{}
	empty    chan struct{}
	dying    time.Duration // from the cut, or the exit, to the emptiness of its tree
	cutOnce  sync.Once
	exitOnce sync.Once
	status   tree.Status
	usage    atomic.Pointer[func() tree.Usage]
	gone     func() // called right before it is empty
	over     func(*LimitError)
	onBegin  func(message int64)
	slow     atomic.Int64 // nanoseconds that each read by the engine takes longer
}

func newFake(dying time.Duration) *fake {
	return &fake{gone: func() {}, down: newChannel(), up: newChannel(), exited: make(chan struct{}), empty: make(chan struct{}), dying: dying}
}

// exit is the end of the child's own process; what else holds the wire dies of it a little later.
func (f *fake) exit(status tree.Status) {
	f.exitOnce.Do(func() {
		status.Known = true
		f.status = status
		close(f.exited)
	})
	f.Cut("exit")
}

func (f *fake) Cut(string) {
	f.cutOnce.Do(func() {
		time.AfterFunc(f.dying, func() {
			f.exitOnce.Do(func() {
				f.status = tree.Status{Known: true, Signal: syscall.SIGKILL}
				close(f.exited)
			})
			f.up.update(func() { f.up.eof = true })
			f.down.update(func() { f.down.deaf = true; f.down.bytes = nil })
			f.gone()
			close(f.empty)
		})
	})
}

func (f *fake) Kill(ctx context.Context, cause string) (tree.Report, error) {
	f.Cut(cause)
	select {
	case <-f.empty:
		return tree.Report{Cause: cause, Level: tree.Atomic, Seen: 1}, nil
	case <-ctx.Done():
		return tree.Report{}, &tree.SurvivorsError{Reason: "still dying"}
	}
}

func (f *fake) Read(b []byte) (int, error) {
	time.Sleep(time.Duration(f.slow.Load()))
	return f.up.read(b)
}
func (f *fake) Write(b []byte) (int, error) { return f.down.write(b) }

func (f *fake) Pending() tree.Pending {
	f.up.mu.Lock()
	defer f.up.mu.Unlock()
	switch {
	case len(f.up.bytes) > 0:
		return tree.Bytes
	case f.up.eof:
		return tree.HungUp
	}
	return tree.Nothing
}

func (f *fake) SetDeadline(t time.Time) error {
	for _, c := range []*channel{f.up, f.down} {
		c.update(func() { c.deadline = t })
		time.AfterFunc(time.Until(t), func() { c.update(func() {}) })
	}
	return nil
}

func (f *fake) CloseWrite() error { f.down.update(func() { f.down.eof = true }); return nil }

func (f *fake) let() {
	f.up.update(func() { f.up.deaf = true; f.up.bytes = nil })
	f.down.update(func() { f.down.eof = true })
}

func (f *fake) Exited() <-chan struct{} { return f.exited }
func (f *fake) Status() tree.Status {
	select {
	case <-f.exited:
		return f.status
	default:
		return tree.Status{}
	}
}
func (f *fake) Usage() (tree.Usage, error) {
	if now := f.usage.Load(); now != nil {
		return (*now)(), nil
	}
	return tree.Usage{}, nil
}

// uses sets what a look at it shows from now on.
func (f *fake) uses(now func() tree.Usage)      { f.usage.Store(&now) }
func (f *fake) Level() tree.Level               { return tree.Atomic }
func (f *fake) Facts() tree.Facts               { return tree.Facts{} }
func (f *fake) Members() ([]tree.Member, error) { return nil, nil }
func (f *fake) begin(message int64) tree.Pending {
	if f.onBegin != nil {
		f.onBegin(message)
	}
	return f.Pending()
}
func (f *fake) printed() []Printed { return nil }
func (f *fake) tail() []string     { return nil }
func (f *fake) whole() []string    { return nil }
func (f *fake) clear() error       { return nil }
func (f *fake) folder() string     { return "" }

// hear is the child's read of one message; nil when there are no more.
func (f *fake) hear() wire.Message {
	body, err := wire.ReadFrame(reader(f.down.read), wire.DefaultCaps())
	if err != nil {
		return nil
	}
	m, err := wire.Decode(body, wire.Engine, wire.DefaultCaps())
	if err != nil {
		panic(err) // the engine's own fault
	}
	return m
}

// say writes messages; as bytes, they may be anything.
func (f *fake) say(messages ...wire.Message) {
	for _, m := range messages {
		f.up.write(encode(m))
	}
}

type reader func([]byte) (int, error)

func (r reader) Read(b []byte) (int, error) { return r(b) }
