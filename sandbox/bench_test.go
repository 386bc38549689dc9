package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"coppice.dev/coppice/wire"
)

// BenchmarkRoundTrip sets a dispatch beside a bare pipe to a Go child that echoes the same bytes, turn by turn: the ratio of
// the medians is what the protocol and the supervision cost.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{64, 1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			body := make([]byte, size)
			dispatch, pipe := benchDispatch(b, body), benchPipe(b, body)
			var ours, bare []time.Duration
			for b.Loop() {
				ours = append(ours, timed(dispatch))
				bare = append(bare, timed(pipe))
			}
			slices.Sort(ours)
			slices.Sort(bare)
			m, n := ours[len(ours)/2], bare[len(bare)/2]
			b.ReportMetric(float64(m.Nanoseconds())/1e3, "µs/dispatch")
			b.ReportMetric(float64(n.Nanoseconds())/1e3, "µs/pipe")
			b.ReportMetric(float64(m)/float64(n), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

func benchDispatch(b *testing.B, body []byte) func() {
	s, err := New(Spec{Name: "bench", Command: []string{program(), "victim", "example", "bench"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close(context.Background()) })
	if err := s.Boot(context.Background()); err != nil {
		b.Fatal(err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := s.Dispatch(ctx, Request{Phase: wire.PhaseHandle, Name: "echo", Message: 1, Body: body}); err != nil {
			b.Fatal(err)
		}
	}
}

func benchPipe(b *testing.B, body []byte) func() {
	down, to, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	from, up, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	child := exec.Command(program(), "victim", "pipe", fmt.Sprint(len(body)))
	child.Stdin, child.Stdout = down, up
	if err := child.Start(); err != nil {
		b.Fatal(err)
	}
	down.Close()
	up.Close()
	b.Cleanup(func() {
		to.Close()
		from.Close()
		child.Wait()
	})
	answer := make([]byte, len(body))
	return func() {
		if _, err := to.Write(body); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(from, answer); err != nil {
			b.Fatal(err)
		}
	}
}
