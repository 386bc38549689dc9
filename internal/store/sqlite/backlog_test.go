package sqlite

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
)

// passOn is a handler that sends what it gets.
type passOn struct{}

func (passOn) Run(_ context.Context, m *message.Message, _ int) (pipeline.Answer, error) {
	return pipeline.Answer{Sends: []message.Send{{To: "out", Body: m.Body}}}, nil
}

// receiver takes everything, and tells what.
type receiver func(message.ID)

func (r receiver) Send(_ context.Context, d message.Delivery) (message.Receipt, error) {
	r(d.Message)
	return message.Receipt{}, nil
}

// backlog is a store in which many messages wait.
type backlog struct {
	t      *testing.T
	s      *Store
	before uint64 // heap in use
	last   message.ID
	after  map[message.ID]message.ID // where not the next one is next
}

// heap is what is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestBacklog opens a store with many messages waiting: they go in order, also the thousand and first and the ten thousand and
// first, and neither opening nor going on reads more than what is at hand: what is in memory does not depend on how many wait.
// Red with a NextReceived that reads the bodies of all that wait.
//
// COPPICE_TEST_BACKLOG is how many wait, at least 12,000.
func TestBacklog(t *testing.T) {
	waiting := 12_000
	if n, err := strconv.Atoi(os.Getenv("COPPICE_TEST_BACKLOG")); err == nil {
		waiting = max(n, waiting)
	}
	path := newPath(t)
	s := openAt(t, path, Options{})
	body := bytes.Repeat([]byte("x"), 2048)
	inSteps(t, s, 1, message.ID(waiting), func(t *tx, _ message.ID) error {
		_, err := t.receive(message.Incoming{Inbound: "in", Body: body}, "", nil, message.Received)
		return err
	})
	must(t, s.Close())
	b := &backlog{t: t, before: heap(), after: map[message.ID]message.ID{}}
	began := time.Now()
	b.s = openAt(t, path, Options{})
	list, err := b.s.Waiting(t.Context())
	if want := (store.Waiting{Kind: message.KindInbound, Name: "in", Count: int64(waiting)}); err != nil || len(list) != 1 || list[0] != want {
		t.Fatalf("waiting: %v, %v", list, err)
	}
	t.Logf("%d messages wait; open, with the question for whom, after %v", waiting, time.Since(began))
	// Nobody looks here at what a power cut leaves, and a commit that waits for the disk is most of the time.
	_, err = b.s.writer.conn.ExecContext(t.Context(), "PRAGMA synchronous=OFF")
	must(t, err)
	b.move(1001)
	next, err := b.s.NextReceived(t.Context(), "in")
	must(t, err)
	b.after[next.ID-1] = 10_001
	inSteps(t, b.s, next.ID, 10_000, func(t *tx, id message.ID) error { return t.route(id, nil, message.Outcome{}) })
	b.move(10_050)
}

// move has a pipeline move messages until one is delivered.
func (b *backlog) move(until message.ID) {
	ctx, stop := context.WithTimeout(b.t.Context(), 5*time.Minute)
	defer stop()
	p := pipeline.New(pipeline.Config{Store: b.s, Grace: time.Minute,
		Inbounds:  []pipeline.Inbound{{Name: "in", Attempts: 1, Handlers: []string{"pass"}}},
		Handlers:  []pipeline.Handler{{Name: "pass", To: []string{"out"}, Attempts: 1, Runner: passOn{}}},
		Outbounds: []pipeline.Outbound{{Name: "out", Sender: receiver(b.take(until, stop)), Retry: pipeline.Retry{First: 1, Max: 1, Rejected: 1}}},
	})
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	running.Wait()
	if b.last < until {
		b.t.Errorf("message %d is the last that is delivered, want %d", b.last, until)
	}
}

// take compares the order of what is delivered, and looks at the heap now and then.
func (b *backlog) take(until message.ID, enough func()) func(message.ID) {
	return func(id message.ID) {
		want := b.last + 1
		if after, ok := b.after[b.last]; ok {
			want = after
		}
		if id != want {
			b.t.Errorf("message %d came behind message %d, want %d", id, b.last, want)
		}
		b.last = id
		if id == 1 || id%1000 == 1 || id == until {
			grown := int64(heap()) - int64(b.before)
			b.t.Logf("at message %d the heap has %d KiB more", id, grown>>10)
			if grown > 8<<20 {
				b.t.Errorf("at message %d the heap has %d bytes more", id, grown)
			}
		}
		if id == until {
			enough()
		}
	}
}

// inSteps does something for each of some ids, many in one operation.
func inSteps(t *testing.T, s *Store, first, last message.ID, do func(*tx, message.ID) error) {
	t.Helper()
	for ; first <= last; first += 1000 {
		must(t, s.commit(t.Context(), 0, func(t *tx) error {
			for id := first; id < min(first+1000, last+1); id++ {
				if err := do(t, id); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}
