package connecttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/message"
)

// Inbound is a transport as the suite for inbounds sees it.
type Inbound struct {
	// New makes an inbound named "in", not yet listening, and what a sender of it does: deliver offers one body until it
	// is acknowledged, again after each failure, and returns then, or with an error once ctx is done.
	New func(t *testing.T, sink connect.Sink) (in connect.Inbound, deliver func(ctx context.Context, body []byte) error)
}

// Bodies are messages that a transport may be tempted to change.
func Bodies() map[string][]byte {
	const head = "MSH|^~\\&|APP|FAC|||20260101||ADT^A01^ADT_A01|%s|P|2.5\r"
	with := func(id, rest string) []byte { return []byte(fmt.Sprintf(head, id) + rest) }
	return map[string][]byte{
		"plain":     with("1", "PID|1\r"),
		"no end":    with("2", "PID|1"),
		"latin-1":   with("3", "PID|1||||M\xfcller\r"),
		"zeros":     with("4", "OBX|1|ED|\x00\x00\x00\r"),
		"marks":     with("5", "OBX|\x0b|\x1c|\x1c\x1c|\x0b\x1c\n\r\n\r"),
		"ends FS":   with("6", "OBX|\x1c"),
		"mark":      append([]byte("\xef\xbb\xbf"), with("7", "PID|1\r")...),
		"line feed": bytes.ReplaceAll(with("8", "PID|1\r"), []byte("\r"), []byte("\n")),
		"both":      bytes.ReplaceAll(with("9", "PID|1\r"), []byte("\r"), []byte("\r\n")),
		"large":     with("10", strings.Repeat("OBX|1|TX|all the same|\r", 50_000)),
		"batch":     []byte("BHS|^~\\&|A||||||||11\r" + string(with("12", "PID|1\r")) + "BTS|1\r"),
		"separated": []byte("MSH$*~\\&$A$F$$$2026$$ADT*A08$13$P$2.3\rPID$1\r"),
	}
}

// Run runs the suite.
func (tr Inbound) Run(t *testing.T) {
	t.Run("serve before listen", func(t *testing.T) {
		in, _ := tr.New(t, NewSink())
		if err := in.Serve(t.Context()); !errors.Is(err, connect.ErrNotListening) {
			t.Errorf("Serve = %v, want ErrNotListening", err)
		}
	})
	t.Run("bodies", func(t *testing.T) { tr.bodies(t, Bodies()) })
	t.Run("samples", func(t *testing.T) { tr.bodies(t, Samples(t, "*.hl7")) })
	t.Run("not committed", tr.notCommitted)
	t.Run("stop idle", func(t *testing.T) {
		s := tr.start(t, NewSink())
		s.stop(t)
	})
	t.Run("stop lets a commit finish", tr.stopFinishes)
	t.Run("stop ends a commit that hangs", tr.stopHanging)
}

// serving is an inbound that serves.
type serving struct {
	deliver func(ctx context.Context, body []byte) error
	cancel  context.CancelFunc
	ended   chan error
}

func (tr Inbound) start(t *testing.T, sink connect.Sink) serving {
	t.Helper()
	in, deliver := tr.New(t, sink)
	s := Serve(t, in)
	return serving{deliver: deliver, cancel: s.cancel, ended: s.ended}
}

// Serve has an inbound listen and serve until the test's end, and checks that it stops in time.
func Serve(t *testing.T, in connect.Inbound) Served {
	t.Helper()
	if err := in.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := Served{serving{cancel: cancel, ended: make(chan error, 1)}}
	go func() { s.ended <- in.Serve(ctx) }()
	t.Cleanup(func() { s.stop(t) })
	return s
}

// Served is an inbound that serves.
type Served struct{ serving }

// Stop ends it and fails the test where that takes longer than it may.
func (s Served) Stop(t *testing.T) {
	t.Helper()
	s.stop(t)
}

func (s serving) stop(t *testing.T) {
	t.Helper()
	s.cancel()
	begin := time.Now()
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("Serve = %v", err)
		}
		s.ended <- nil // for the next stop
		if took := time.Since(begin); took > connect.StopWithin {
			t.Errorf("stop took %v, more than %v", took, connect.StopWithin)
		}
	case <-time.After(Patience):
		t.Fatal("Serve does not return")
	}
}

// bodies checks that each arrives byte for byte, once, in order, with what belongs to it.
func (tr Inbound) bodies(t *testing.T, bodies map[string][]byte) {
	sink := NewSink()
	s := tr.start(t, sink)
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	var names []string
	for name, body := range bodies {
		names = append(names, name)
		if err := s.deliver(ctx, body); err != nil {
			t.Fatalf("%s: deliver: %v", name, err)
		}
	}
	got := sink.Messages() // all there: each was acknowledged
	if len(got) != len(names) {
		t.Fatalf("%d messages, want %d", len(got), len(names))
	}
	for i, name := range names {
		if !bytes.Equal(got[i].Body, bodies[name]) {
			t.Errorf("%s: body changed: %.80q, want %.80q", name, got[i].Body, bodies[name])
		}
		if got[i].Inbound != "in" || got[i].Peer == "" || got[i].Received.Location() != time.UTC {
			t.Errorf("%s: inbound %q, peer %q, received %v", name, got[i].Inbound, got[i].Peer, got[i].Received)
		}
		if bytes.Contains(bodies[name], []byte("|ADT^A01^ADT_A01|")) && !bytes.HasPrefix(bodies[name], []byte("BHS")) &&
			!bytes.HasPrefix(bodies[name], []byte("FHS")) && got[i].Type != "ADT^A01" {
			t.Errorf("%s: type %q, want ADT^A01", name, got[i].Type)
		}
	}
}

// notCommitted checks that an error of the sink leads to no acknowledgement, and the next try to one.
func (tr Inbound) notCommitted(t *testing.T) {
	for _, failure := range []error{connect.ErrBusy, errors.Join(errors.New("disk"), connect.ErrUnknown), errors.New("full")} {
		t.Run(failure.Error(), func(t *testing.T) {
			sink := NewSink()
			failures := 2 // Receive's calls follow one another here
			sink.OnReceive(func(context.Context, message.Incoming) error {
				if failures--; failures >= 0 {
					return failure
				}
				return nil
			})
			s := tr.start(t, sink)
			ctx, cancel := context.WithTimeout(t.Context(), Patience)
			defer cancel()
			if err := s.deliver(ctx, Bodies()["plain"]); err != nil {
				t.Fatal(err)
			}
			// Red where Receive's error is answered like its success: the delivery returns before anything is kept.
			if n := len(sink.Messages()); n != 1 {
				t.Errorf("%d messages when the sender was told, want 1", n)
			}
			if n := len(sink.Refusals()); n != 0 {
				t.Errorf("%d refusals, want none: the message is not at fault", n)
			}
		})
	}
}

// stopFinishes checks that a commit under way when the stop comes is finished and acknowledged, though it takes longer than
// the stop of all else. Red where the commit's context is the one that Serve was given, and where it ends before the
// connections' work has been awaited.
func (tr Inbound) stopFinishes(t *testing.T) {
	sink := NewSink()
	release := make(chan struct{})
	sink.OnReceive(func(ctx context.Context, _ message.Incoming) error {
		<-release
		select {
		case <-time.After(connect.StopWithin / 10): // the commit
			return ctx.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	s := tr.start(t, sink)
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	told := make(chan error, 1)
	go func() { told <- s.deliver(ctx, Bodies()["plain"]) }()
	sink.AwaitTries(t, 1)
	s.cancel()
	close(release)
	s.stop(t)
	if err := <-told; err != nil {
		t.Errorf("deliver: %v", err)
	}
	if n := len(sink.Messages()); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// stopHanging checks that a commit which ends only with its context does not hold up the stop. Red where the commit's
// context never ends.
func (tr Inbound) stopHanging(t *testing.T) {
	sink := NewSink()
	sink.OnReceive(func(ctx context.Context, _ message.Incoming) error {
		<-ctx.Done()
		return errors.Join(ctx.Err(), connect.ErrUnknown)
	})
	s := tr.start(t, sink)
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan error, 1)
	go func() { told <- s.deliver(ctx, Bodies()["plain"]) }()
	sink.AwaitTries(t, 1)
	s.stop(t)
	cancel()
	if err := <-told; err == nil {
		t.Error("acknowledged what was not committed")
	}
}

// Outbound is a transport as the suite for outbounds sees it.
type Outbound struct {
	// New makes an outbound whose receiver takes everything, and a function that returns what it took.
	New func(t *testing.T) (out connect.Outbound, received func() [][]byte)
}

// Run runs the suite.
func (tr Outbound) Run(t *testing.T) {
	t.Run("bodies", func(t *testing.T) { tr.bodies(t, Bodies()) })
	t.Run("samples", func(t *testing.T) { tr.bodies(t, Samples(t, "*.hl7")) })
	t.Run("concurrent", tr.concurrent)
	t.Run("cancelled", func(t *testing.T) {
		out, received := tr.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := out.Send(ctx, Delivery(1, Bodies()["plain"])); !errors.Is(err, context.Canceled) {
			t.Errorf("Send = %v, want context.Canceled", err)
		}
		if n := len(received()); n != 0 {
			t.Errorf("%d bodies arrived, want none", n)
		}
	})
	t.Run("closed", func(t *testing.T) {
		out, _ := tr.New(t)
		for range 2 {
			if err := out.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
		}
		if _, err := out.Send(t.Context(), Delivery(1, Bodies()["plain"])); !errors.Is(err, connect.ErrClosed) {
			t.Errorf("Send = %v, want ErrClosed", err)
		}
	})
}

// Delivery is a delivery of body for message n.
func Delivery(n int, body []byte) message.Delivery {
	return message.Delivery{ID: int64(n), Message: message.ID(n), Number: 1, Inbound: "in", Outbound: "out", Body: body}
}

func (tr Outbound) bodies(t *testing.T, bodies map[string][]byte) {
	out, received := tr.New(t)
	var want [][]byte
	for name, body := range bodies {
		receipt, err := out.Send(t.Context(), Delivery(len(want)+1, body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if receipt.Text == "" || strings.ContainsAny(receipt.Text, "\r\n") {
			t.Errorf("%s: receipt %q", name, receipt.Text)
		}
		want = append(want, body)
	}
	if !slices.EqualFunc(received(), want, bytes.Equal) {
		t.Error("what arrived is not what was sent")
	}
}

func (tr Outbound) concurrent(t *testing.T) {
	out, received := tr.New(t)
	const senders, each = 8, 5
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for i := range each {
				n := s*each + i + 1
				body := fmt.Appendf(nil, "MSH|^~\\&|||||||ADT^A01|%d|P|2.5\r", n)
				if _, err := out.Send(t.Context(), Delivery(n, body)); err != nil {
					t.Errorf("%d: %v", n, err)
				}
			}
		})
	}
	all.Wait()
	distinct := map[string]bool{}
	for _, body := range received() {
		distinct[string(body)] = true
	}
	if len(distinct) != senders*each {
		t.Errorf("%d bodies arrived, want %d", len(distinct), senders*each)
	}
}
