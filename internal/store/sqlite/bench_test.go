package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// BenchmarkReceive commits 1 KiB messages, each acknowledged after its fsync, from 1 and from 8 producers.
func BenchmarkReceive(b *testing.B) {
	for _, producers := range []int{1, 8} {
		b.Run(fmt.Sprint(producers), func(b *testing.B) {
			s := openAt(b, newPath(b), Options{})
			in := message.Incoming{Inbound: "adt", Type: "ADT^A01", ControlID: "1", Body: bytes.Repeat([]byte("x"), 1024)}
			b.SetBytes(1024)
			var left atomic.Int64
			left.Store(int64(b.N))
			done := make(chan error, producers)
			b.ResetTimer()
			for range producers {
				go func() {
					for left.Add(-1) >= 0 {
						if _, err := s.Receive(context.Background(), in); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			for range producers {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			b.ReportMetric(float64(s.writer.ops.Load())/float64(s.writer.commits.Load()), "msg/commit")
		})
	}
}

// BenchmarkReceiveBesideLarge has eight producers of 1 KiB messages by themselves, and then beside one of 10 MB messages, in
// turns in one run, and reports both rates and how many times slower the small ones are beside the large one.
func BenchmarkReceiveBesideLarge(b *testing.B) {
	s := openAt(b, newPath(b), Options{})
	large := message.Incoming{Inbound: "img", Body: noise(10_000_000)}
	const turn = 500 * time.Millisecond
	var alone, beside, whole atomic.Int64
	for b.Loop() {
		produce(b, s, turn, eightSmall(&alone))
		produce(b, s, turn, func(send func(message.Incoming, *atomic.Int64)) {
			eightSmall(&beside)(send)
			send(large, &whole)
		})
	}
	seconds := float64(b.N) * turn.Seconds()
	b.ReportMetric(float64(alone.Load())/seconds, "alone/s")
	b.ReportMetric(float64(beside.Load())/seconds, "beside/s")
	b.ReportMetric(float64(whole.Load())/seconds, "large/s")
	b.ReportMetric(float64(alone.Load())/float64(beside.Load()), "times-slower")
}

// BenchmarkReceiveBesidePurge has eight producers of 1 KiB messages by themselves, and then beside a purge that pauses as an
// engine's does, and reports both rates, what was purged meanwhile, and the longest that one of its steps took.
func BenchmarkReceiveBesidePurge(b *testing.B) {
	s := openAt(b, newPath(b), Options{})
	const turn = 500 * time.Millisecond
	var alone, beside atomic.Int64
	var sum steps
	for b.Loop() {
		for range 10 { // more than a turn can purge
			must(b, s.commit(b.Context(), 0, receiveEnded))
		}
		produce(b, s, turn, eightSmall(&alone))
		ctx, stop := context.WithCancel(b.Context())
		var work sync.WaitGroup
		work.Go(func() { sum.along(ctx, b, s) })
		produce(b, s, turn, eightSmall(&beside))
		stop()
		work.Wait()
	}
	seconds := float64(b.N) * turn.Seconds()
	b.ReportMetric(float64(alone.Load())/seconds, "alone/s")
	b.ReportMetric(float64(beside.Load())/seconds, "beside/s")
	b.ReportMetric(float64(sum.messages)/seconds, "purged/s")
	b.ReportMetric(float64(sum.longest.Milliseconds()), "longest-ms")
}

func smallMessage() message.Incoming {
	return message.Incoming{Inbound: "adt", Body: bytes.Repeat([]byte("x"), 1024)}
}

// eightSmall starts eight producers of 1 KiB messages.
func eightSmall(count *atomic.Int64) func(send func(message.Incoming, *atomic.Int64)) {
	return func(send func(message.Incoming, *atomic.Int64)) {
		for range 8 {
			send(smallMessage(), count)
		}
	}
}

// receiveEnded receives a thousand messages that have ended.
func receiveEnded(t *tx) error {
	for range 1000 {
		id, err := t.receive(smallMessage(), "", nil, message.Received)
		if err == nil {
			err = t.route(message.ID(id), nil, message.Outcome{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// steps is what a purge has done.
type steps struct {
	messages int64
	longest  time.Duration
}

// along purges until ctx ends.
func (p *steps) along(ctx context.Context, b *testing.B, s *Store) {
	for ctx.Err() == nil {
		began := time.Now()
		step, err := s.Purge(b.Context(), everything())
		if err != nil {
			b.Error(err)
		}
		p.messages += step.Messages
		took := time.Since(began)
		p.longest = max(p.longest, took)
		select {
		case <-ctx.Done():
		case <-time.After(3 * took):
		}
	}
}

// produce runs producers for a time, and returns when all have ended.
func produce(b *testing.B, s *Store, d time.Duration, start func(send func(message.Incoming, *atomic.Int64))) {
	ctx, cancel := context.WithTimeout(b.Context(), d)
	defer cancel()
	var all sync.WaitGroup
	start(func(in message.Incoming, count *atomic.Int64) {
		all.Go(func() {
			for ctx.Err() == nil {
				switch _, err := s.Receive(ctx, in); {
				case err == nil:
					count.Add(1)
				case ctx.Err() == nil:
					b.Error(err)
					return
				}
			}
		})
	})
	all.Wait()
}

// BenchmarkHeads asks for the heads of an outbound with eight lanes of 25,000 waiting deliveries each.
func BenchmarkHeads(b *testing.B) {
	s := openAt(b, newPath(b), Options{})
	for i := range 8 {
		inbound := fmt.Sprint("in", i)
		id := receive(b, s, inbound, "x")
		must(b, s.commit(context.Background(), 0, func(t *tx) error {
			if err := t.run("INSERT INTO runs (message, handler, state) VALUES (?, 'h', 'SENT')", id); err != nil {
				return err
			}
			return t.run(`WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 25000)
				INSERT INTO deliveries (message, number, run, inbound, outbound, place, sub, state, body)
				SELECT ?1, n, (SELECT max(id) FROM runs), ?2, 'out', n * 8, 0, 'READY', 1 FROM n`, id, inbound)
		}))
	}
	for b.Loop() {
		heads, err := s.Heads(context.Background(), "out", 1)
		if err != nil || len(heads) != 8 {
			b.Fatal(len(heads), err)
		}
	}
}

// BenchmarkMessage takes one message after the other through all of the store: five calls that ask, three that commit.
func BenchmarkMessage(b *testing.B) {
	s := openAt(b, newPath(b), Options{})
	in := message.Incoming{Inbound: "adt", Type: "ADT^A01", ControlID: "1", Body: bytes.Repeat([]byte("x"), 1024)}
	plans := []store.Plan{{Handler: "admit", To: []string{"emr"}}}
	ctx := context.Background()
	for b.Loop() {
		_, runs, err := s.ReceiveRouted(ctx, in, plans)
		if err != nil || len(runs) != 1 {
			b.Fatal(runs, err)
		}
		run, m := nextRun(b, s, "admit")
		must(b, s.EndRun(ctx, run.ID, message.Outcome{State: message.RunSent, Attempts: 1, Sends: []message.Send{{To: "emr", Body: m.Body}}}))
		heads, err := s.Heads(ctx, "emr", 1)
		if err != nil || len(heads) != 1 {
			b.Fatal(heads, err)
		}
		_, err = s.DeliveryBody(ctx, heads[0].ID)
		must(b, err)
		must(b, s.Delivered(ctx, heads[0].ID, message.Receipt{Text: "AA"}))
	}
}
