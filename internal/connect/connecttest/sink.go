// Package connecttest is what the tests of all connections share: a sink that remembers, and the suites that every
// inbound and every outbound passes.
package connecttest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
)

// Patience is how long a test waits for what must happen. Nothing waits this long where all is well.
const Patience = 10 * time.Second

// Sink is a connect.Sink that keeps all it is given. The zero value is not usable; see NewSink. It is safe for concurrent
// use.
type Sink struct {
	mu       sync.Mutex
	messages []message.Incoming
	refusals []message.Refusal
	tries    int // calls of Receive
	changed  chan struct{}
	receive  func(ctx context.Context, in message.Incoming) error
	refuse   func(ctx context.Context, r message.Refusal) error
}

// NewSink returns a sink that takes everything.
func NewSink() *Sink { return &Sink{changed: make(chan struct{})} }

// OnReceive has f called before each message is kept; its error is Receive's, and the message is not kept.
func (s *Sink) OnReceive(f func(ctx context.Context, in message.Incoming) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receive = f
}

// OnRefuse has f called before each refusal is kept; its error is Refuse's, and the refusal is not kept.
func (s *Sink) OnRefuse(f func(ctx context.Context, r message.Refusal) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = f
}

// Receive implements connect.Sink.
func (s *Sink) Receive(ctx context.Context, in message.Incoming) (message.ID, error) {
	s.mu.Lock()
	s.tries++
	f := s.receive
	s.notify()
	s.mu.Unlock()
	if f != nil {
		if err := f(ctx, in); err != nil {
			return 0, err
		}
	}
	return s.Keep(in), nil
}

// ReceiveAll implements connect.Sink: it keeps all, or none.
func (s *Sink) ReceiveAll(ctx context.Context, all []message.Incoming) (ids []message.ID, err error) {
	s.mu.Lock()
	s.tries++
	f := s.receive
	s.notify()
	s.mu.Unlock()
	for i := 0; f != nil && i < len(all); i++ {
		if err := f(ctx, all[i]); err != nil {
			return nil, err
		}
	}
	for _, in := range all {
		ids = append(ids, s.Keep(in))
	}
	return ids, nil
}

// Keep keeps a message; an OnReceive that commits and then reports an error calls it.
func (s *Sink) Keep(in message.Incoming) message.ID {
	in.Body = bytes.Clone(in.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = append(s.messages, in)
	s.notify()
	return message.ID(len(s.messages))
}

// Refuse implements connect.Sink.
func (s *Sink) Refuse(ctx context.Context, r message.Refusal) error {
	s.mu.Lock()
	f := s.refuse
	s.mu.Unlock()
	if f != nil {
		if err := f(ctx, r); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = append(s.refusals, r)
	s.notify()
	return nil
}

// Seen implements connect.Sink.
func (s *Sink) Seen(_ context.Context, src message.Source) (message.ID, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range s.messages {
		if m.File != nil && *m.File == src {
			return message.ID(i + 1), true, nil
		}
	}
	return 0, false, nil
}

// notify wakes who waits; the caller holds s.mu.
func (s *Sink) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Messages is what was received so far.
func (s *Sink) Messages() []message.Incoming {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}

// Refusals is what was refused so far.
func (s *Sink) Refusals() []message.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refusals)
}

// AwaitMessages waits until n messages are kept and returns all.
func (s *Sink) AwaitMessages(t testing.TB, n int) []message.Incoming {
	t.Helper()
	s.await(t, "messages", n, func() int { return len(s.messages) })
	return s.Messages()
}

// AwaitRefusals waits until n refusals are kept and returns all.
func (s *Sink) AwaitRefusals(t testing.TB, n int) []message.Refusal {
	t.Helper()
	s.await(t, "refusals", n, func() int { return len(s.refusals) })
	return s.Refusals()
}

// AwaitTries waits until Receive was called n times.
func (s *Sink) AwaitTries(t testing.TB, n int) {
	t.Helper()
	s.await(t, "calls of Receive", n, func() int { return s.tries })
}

func (s *Sink) await(t testing.TB, what string, n int, count func() int) {
	t.Helper()
	late := time.After(Patience)
	for {
		s.mu.Lock()
		have, changed := count(), s.changed
		s.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%d %s after %v, want %d", have, what, Patience, n)
		}
	}
}

// Samples are the bodies of the sample collection: real-looking messages of many systems, and what is no HL7 at all. It
// lies beside the checkout and is not part of it: the test is skipped where it is missing.
func Samples(t testing.TB, pattern string) map[string][]byte {
	t.Helper()
	dir := sampleDir(t)
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(paths) == 0 {
		t.Skipf("missing: samples: %s, which is not part of the source, has no %s", dir, pattern)
	}
	bodies := map[string][]byte{}
	for _, p := range paths {
		if bodies[filepath.Base(p)], err = os.ReadFile(p); err != nil {
			t.Fatal(err)
		}
	}
	return bodies
}

// Load is the load corpus: 1013 synthetic messages, one a line, segments ended by CR. Skips as Samples does.
func Load(t testing.TB) [][]byte {
	t.Helper()
	const name = "simhospital-load.out"
	var bodies [][]byte
	for line := range bytes.SplitSeq(Samples(t, name)[name], []byte("\n")) {
		if len(line) > 0 {
			bodies = append(bodies, line)
		}
	}
	if len(bodies) != 1013 {
		t.Fatalf("%s holds %d messages, want 1013", name, len(bodies))
	}
	return bodies
}

// sampleDir is ../shared/samples as seen from the checkout's root, the folder of go.mod.
func sampleDir(t testing.TB) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "..", "shared", "samples")
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = parent
	}
}
