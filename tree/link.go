package tree

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// LinkEnv is the environment name by which a command finds its end of a Link; package worker and the SDKs read it.
const LinkEnv = "COPPICE_WIRE"

// Link is the engine's end of two pipes between the engine and a tree's command, one for each direction. It is owned by
// the engine: whatever a descendant does with the other ends, Close here ends every call. Read and Write may be called
// from one goroutine each at a time, all other methods from any.
type Link struct {
	from, to *os.File // the engine's ends
	worker   [2]*os.File
	asked    atomic.Bool // CloseWrite was called
	tried    bool        // Write's: to widen the pipes
	wide     atomic.Bool // they count among the wide ones

	ahead  *[readAhead]byte // Read's, lent while it holds something: what has been read and not handed out begins at ahead[taken]
	taken  int
	behind atomic.Int64 // bytes that are left there
}

// readAhead is how much Read takes out of the pipe at once, if there is so much: the length of an ordinary frame and all of
// the rest come with one system call.
const readAhead = 4 << 10

// aheads are those that no Link has just now: most links of an engine are idle.
var aheads = sync.Pool{New: func() any { return new([readAhead]byte) }}

// NewLink makes the pipes. The command's ends are handed over by Files and Env, and closed by Started.
func NewLink() (*Link, error) {
	down, to, err := linkPipe(false)
	if err != nil {
		return nil, err
	}
	from, up, err := linkPipe(true)
	if err != nil {
		down.Close()
		to.Close()
		return nil, err
	}
	return &Link{from: from, to: to, worker: [2]*os.File{down, up}}, nil
}

// Files are the command's ends, for Spec.Extra to begin with: it reads from the first and writes to the second.
func (l *Link) Files() []*os.File { return l.worker[:] }

// Env is the environment entry that tells the command where its ends are: descriptors 3 and 4. On Windows Start puts the
// values of their handles in the place of the two numbers.
func (l *Link) Env() string { return LinkEnv + "=3,4" }

// Started closes the engine's copies of the command's ends. Call it once Start has returned, whatever it returned.
func (l *Link) Started() {
	for _, f := range l.worker {
		f.Close()
	}
}

// Read reads what the command wrote. io.EOF means that no process holds the other end any more. It may take up to 4 KiB
// more out of the pipe than it returns, which the next Read returns first, whatever the deadline, and Pending knows of.
func (l *Link) Read(b []byte) (int, error) {
	if l.behind.Load() == 0 {
		if len(b) >= readAhead || len(b) == 0 {
			return l.from.Read(b)
		}
		ahead := aheads.Get().(*[readAhead]byte)
		n, err := l.from.Read(ahead[:])
		if n <= 0 {
			aheads.Put(ahead)
			return 0, err
		}
		l.ahead, l.taken = ahead, 0
		l.behind.Store(int64(n))
	}
	n := copy(b, l.ahead[l.taken:l.taken+int(l.behind.Load())])
	l.taken += n
	if l.behind.Add(int64(-n)) == 0 {
		aheads.Put(l.ahead)
		l.ahead = nil
	}
	return n, nil
}

// Write writes to the command. It blocks while the pipe is full, until the deadline. What it had written by then it counts
// on Unix alone.
func (l *Link) Write(b []byte) (int, error) {
	if len(b) >= largeWrite && !l.tried {
		l.tried = true
		l.widen()
	}
	return l.to.Write(b)
}

// largeWrite is what fills an ordinary pipe: a first Write of so much has the pipes widened, if that can be had, so that a
// large frame does not go back and forth between two processes in small pieces.
const largeWrite = 64 << 10

// mostWide is how many links of a program have wide pipes at a time. A user has 64 MiB of pipes on Linux
// (pipe-user-pages-soft), and all programs of that user get pipes of 4 or 8 KiB once they are used up.
const (
	mostWide  = 8
	wideBytes = 1 << 20 // of each of a link's two pipes
)

var widened atomic.Int64 // links that are wide

// widen makes the pipes wide if there are few such links. What the system refuses stays as it is.
func (l *Link) widen() {
	if widened.Add(1) > mostWide {
		widened.Add(-1)
		return
	}
	l.wide.Store(true)
	if !widenPipe(l.to) { // refused, or closed meanwhile: then Close may have come before Store
		l.narrow()
		return
	}
	widenPipe(l.from)
}

// narrow gives the place among the wide ones back.
func (l *Link) narrow() {
	if l.wide.Swap(false) {
		widened.Add(-1)
	}
}

// SetDeadline bounds Read and Write (after CloseWrite, Read alone), also those that wait already; the zero time lifts the
// bound.
func (l *Link) SetDeadline(t time.Time) error {
	err := l.from.SetDeadline(t)
	if !l.asked.Load() {
		err = errors.Join(err, l.to.SetDeadline(t))
	}
	return err
}

// Pending is what lies in the pipe from the command.
type Pending int

// The answers of Link.Pending.
const (
	Nothing Pending = iota
	Bytes           // the command has written something
	HungUp          // nobody holds the command's end any more, and nothing is left to read
	Unknown         // the look itself went wrong
)

// Pending looks, without waiting and without reading, whether the command has written or hung up.
func (l *Link) Pending() Pending {
	pending, _ := l.Look()
	return pending
}

// Look is Pending that looks, with the same system call, whether bytes lie in any of other pipes, of which the caller has the
// read ends; on Windows it does not know of those, and says no. One that is closed meanwhile makes that answer worthless.
func (l *Link) Look(others ...*os.File) (pending Pending, unread bool) {
	pending, unread = l.look(others)
	if l.behind.Load() > 0 {
		pending = Bytes
	}
	return pending, unread
}

// CloseWrite closes the direction to the command, which is how a worker is asked to end.
func (l *Link) CloseWrite() error {
	l.asked.Store(true)
	return l.to.Close()
}

// Close closes the engine's ends and ends every Read and Write. It may be called again.
func (l *Link) Close() error {
	err := errors.Join(l.to.Close(), l.from.Close())
	l.narrow()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
