package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"coppice.dev/coppice/internal/message"
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
		heads, err := s.Heads(context.Background(), "out")
		if err != nil || len(heads) != 8 {
			b.Fatal(len(heads), err)
		}
	}
}
