package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/sqlite"
)

// purged is a store of which nothing but purging is asked.
type purged struct {
	store.Store
	purge func(store.PurgeRequest) (store.Purged, error)
}

func (p purged) Purge(_ context.Context, r store.PurgeRequest) (store.Purged, error) {
	return p.purge(r)
}

// TestKeep: the store is purged soon after the start and then once in a while, step after step until there are no more, with
// pauses; an error puts it off until the next time. Red with a keep that purges once, with a purge that takes one step, and
// without its pause, and with a time that goes on from step to step.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := &config.Config{}
		cfg.Store.Retention.Dead = 24 * time.Hour
		began, steps := time.Now(), ""
		e := &Engine{disk: &disk{min: func() int64 { return 0 }}, log: slog.New(slog.DiscardHandler)}
		e.now.Store(&generation{cfg: cfg})
		n := 0
		e.store = purged{purge: func(r store.PurgeRequest) (store.Purged, error) {
			if !r.DoneBefore.IsZero() || r.Lies == nil {
				t.Errorf("asked for %+v", r)
			}
			steps += fmt.Sprint(time.Since(began), "-", r.DeadBefore.Add(24*time.Hour).Sub(began), " ")
			time.Sleep(time.Second)
			if n++; n == 3 {
				return store.Purged{}, errors.New("disk full")
			}
			return store.Purged{Messages: 1, More: n < 5}, nil
		}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.keep(ctx)
		}()
		time.Sleep(3 * time.Minute)
		stop()
		<-ended
		if want := "10s-10s 14s-10s 18s-10s 1m19s-1m19s 1m23s-1m19s 2m24s-2m24s "; steps != want {
			t.Errorf("steps at %s, want %s", steps, want)
		}
	})
}

// TestPurge: what had its time goes from a real store, what is still to do and a file that lies there stay. Red with a lies
// that is never true, and with the two times exchanged.
func TestPurge(t *testing.T) {
	dir := t.TempDir()
	cfg := &config.Config{}
	cfg.Store.Retention.Done = time.Nanosecond
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "coppice.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	file := &message.Source{Path: filepath.Join(dir, "lies.hl7"), ModTime: time.Now()}
	write(t, file.Path, "x")
	gone := &message.Source{Path: filepath.Join(dir, "gone.hl7"), ModTime: time.Now()}
	var ids []message.ID
	for i := range 300 {
		id, err := s.Receive(t.Context(), message.Incoming{Inbound: "in", File: []*message.Source{file, gone, nil}[min(i, 2)]})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, id := range ids[:298] {
		err = errors.Join(err, s.Route(t.Context(), id, nil, message.Outcome{State: message.RunSent}))
	}
	fault := message.Outcome{State: message.RunError, Attempts: 1, Fault: &message.Fault{}}
	if err = errors.Join(err, s.FailRoute(t.Context(), ids[298], fault)); err != nil {
		t.Fatal(err)
	}
	e := &Engine{store: s, log: slog.New(slog.DiscardHandler)}
	e.now.Store(&generation{cfg: cfg})
	if err := e.purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := s.Messages(t.Context(), store.Query{})
	if err != nil || len(left) != 2 || left[0].ID != ids[299] || left[1].ID != ids[298] {
		t.Errorf("%d messages are left, %v", len(left), err)
	}
	for src, want := range map[*message.Source]bool{file: true, gone: false} {
		if _, known, err := s.Seen(t.Context(), *src); known != want || err != nil {
			t.Errorf("%s is known: %v, %v", src.Path, known, err)
		}
	}
}
