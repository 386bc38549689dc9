package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
)

// TestDisk: the system is asked once a second at most, a change is told once, an answer that does not come changes nothing, and
// what stops below min goes on with an eighth more. Red without each: the look at asked, the look at low in is, its eighth,
// the look at the error; and with min 0 taken for a limit, the last part.
func TestDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free int64
		var fails error
		asked, told := 0, ""
		d := &disk{min: func() int64 { return 800 }, free: func() (int64, error) { asked++; return free, fails },
			tell: func(low bool, free int64) { told += fmt.Sprintf("%v %d;", low, free) }}
		time.Sleep(time.Hour)
		for i, step := range []struct {
			free  int64
			fails error
			full  bool
		}{
			{800, nil, false}, {799, nil, true}, {0, nil, true}, {800, nil, true}, {1e9, errors.New("gone"), true}, {899, nil, true},
			{900, nil, false}, {800, nil, false}, {0, errors.New("gone"), false}, {1, nil, true},
		} {
			free, fails = step.free, step.fails
			for range 10 {
				if got := d.full(); got != step.full {
					t.Errorf("step %d: full is %v", i, got)
				}
				time.Sleep(askDisk / 10)
			}
			if asked != i+1 {
				t.Errorf("step %d: the system was asked %d times", i, asked)
			}
		}
		if want := "true 799;false 900;true 1;"; told != want {
			t.Errorf("told %q, want %q", told, want)
		}
		if never := (&disk{min: func() int64 { return 0 }, free: d.free}); never.full() || asked != 10 {
			t.Error("a disk without a limit is full, or was asked about")
		}
	})
}

// full is a store of which nobody knows what it has committed.
type full struct{ store.Store }

func (full) ReceiveRouted(context.Context, message.Incoming, []message.Plan) (message.ID, []message.Pending, error) {
	return 0, nil, fmt.Errorf("receive: disk full; %w", store.ErrUnknown)
}

// TestUnknownIsToldOnce: a connection knows that the outcome is not known, and who reads of it does not read it twice. Red with
// connect.ErrUnknown joined to the error.
func TestUnknownIsToldOnce(t *testing.T) {
	e := &Engine{disk: &disk{min: func() int64 { return 0 }}}
	e.now.Store(&generation{cfg: &config.Config{}, pipeline: pipeline.New(pipeline.Config{Store: full{}})})
	_, err := sink{e}.Receive(t.Context(), message.Incoming{})
	if !errors.Is(err, connect.ErrUnknown) || !errors.Is(err, store.ErrUnknown) || err.Error() != "receive: disk full; outcome of the commit is unknown" {
		t.Errorf("got error %v", err)
	}
}

const diskTOML = `
version = 1
[store]
min_free = "1GiB"
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
handlers = ["numbered"]
[handler.numbered]
run = "feed.py:numbered"
to = ["emr"]
[outbound.emr]
mllp = { connect = %q }
retry = { first = "10ms", max = "20ms" }
`

// TestLowDisk: with too little room nothing is received, and nobody is told to skip a message; what was received before is
// delivered meanwhile; receiving goes on by itself. Red without the look at the disk in sink.Receive: the loop ends in vain.
func TestLowDisk(t *testing.T) {
	needPython(t)
	var down atomic.Bool
	var free atomic.Int64
	free.Store(2 << 30)
	changes := make(chan bool, 10)
	receiver := newEMR(t, down.Load)
	down.Store(true)
	e := serve(t, folder(t, fmt.Sprintf(diskTOML, receiver.Addr())), Options{
		Disk: func(low bool, _ int64) { changes <- low },
		free: func(string) (int64, error) { return free.Load(), nil },
	})
	send := func() (taken bool) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := dial(t, e.Addr("feed"))
		defer c.Close()
		ack, err := c.Exchange(ctx, troubleMessage("fine"))
		if err == nil && ack.Code != hl7.AA {
			t.Errorf("answered with %+v", ack)
		}
		if ctx.Err() != nil {
			t.Error("neither an answer nor the end of the connection")
		}
		return err == nil
	}
	taken := 0
	count := func() bool {
		if send() {
			taken++
			return true
		}
		return false
	}
	if !count() {
		t.Error("not taken with enough room")
	}
	free.Store(1<<30 - 1)
	eventually(t, func() bool { return !count() })
	before := taken
	down.Store(false)
	e.quiet(t, int64(taken)) // all of it is delivered, while
	if count() {
		t.Error("taken while the disk is low")
	}
	free.Store(2 << 30)
	eventually(t, count)
	if counts := e.quiet(t, int64(taken)); counts[message.Processed] != int64(before+1) || len(receiver.got()) != taken {
		t.Errorf("%v, the receiver got %d of %d", counts, len(receiver.got()), taken)
	}
	if low, again := <-changes, <-changes; !low || again {
		t.Errorf("told that it is low: %v, %v", low, again)
	}
}
