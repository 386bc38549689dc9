package file

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/room"
)

// lines is a log whose lines are told of.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.text.Write(b)
}

// A file for which there is no memory stays where it is, and so do those behind it: their order holds. A stop does not wait for
// memory. Nothing is taken in the end. Red with the error of the memory taken for one of the file (b overtakes a), without
// ctx in take, and without hold.Free.
func TestFilesWaitForMemory(t *testing.T) {
	for _, poll := range []time.Duration{50 * time.Millisecond, time.Hour} {
		dir, sink, memory := t.TempDir(), connecttest.NewSink(), room.New(0, 200_000, nil)
		other := memory.Body(200_000, time.Now().Add(time.Hour), nil)
		if err := other.Reserve(200_000); err != nil {
			t.Fatal(err)
		}
		drop(t, dir, "a.hl7", append(adt("1"), make([]byte, 150_000)...))
		drop(t, dir, "b.hl7", adt("2"))
		log := &lines{more: make(chan struct{}, 1)}
		served := connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, Poll: poll, Stable: time.Millisecond, Room: memory, MaxMessage: 200_000,
			Log: slog.New(slog.NewTextHandler(log, nil))}, sink))
		if poll == time.Hour { // its wait is as long
			for late := time.Now().Add(connecttest.Patience); memory.Used().Begun < 2*room.Beginning; time.Sleep(time.Millisecond) {
				if time.Now().After(late) {
					t.Fatal("the file does not wait")
				}
			}
			served.Stop(t)
			other.Free()
		} else {
			select {
			case <-log.more:
			case <-time.After(connecttest.Patience):
				t.Fatal("no word in the log")
			}
			if n := len(sink.Messages()); n != 0 {
				t.Errorf("%d messages, want none", n)
			}
			other.Free()
			got := sink.AwaitMessages(t, 2)
			if !strings.HasSuffix(got[0].Peer, "a.hl7") || !strings.HasSuffix(got[1].Peer, "b.hl7") {
				t.Errorf("took %q, then %q", got[0].Peer, got[1].Peer)
			}
			served.Stop(t)
		}
		if u := memory.Used(); u != (room.Used{}) {
			t.Errorf("%+v is taken in the end", u)
		}
	}
}
