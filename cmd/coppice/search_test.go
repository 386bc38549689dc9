package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// shelf is a store with so many messages, of a body each, that have ended. It is looked at by a search alone.
type shelf struct {
	store.Reader
	last  message.ID
	size  int64
	each  func(id message.ID) (bool, error) // says whether it has the text
	asked []store.Query
}

func (s *shelf) Messages(_ context.Context, q store.Query) (list []message.Message, err error) {
	s.asked = append(s.asked, q)
	id := s.last
	if q.Before > 0 {
		id = q.Before - 1
	}
	for ; id > 0 && len(list) < q.Limit; id-- {
		list = append(list, message.Message{ID: id, Received: time.Unix(int64(id), 0), Disposition: message.Processed})
	}
	return list, nil
}

func (s *shelf) Contains(_ context.Context, id message.ID, _ []byte) (store.Hit, error) {
	found, err := s.each(id)
	return store.Hit{Found: found, Bytes: s.size}, err
}

// look searches a shelf, and returns what it printed.
func look(ctx context.Context, s *search, on *shelf) (out, told string, err error) {
	var stdout, stderr bytes.Buffer
	s.io, s.r, s.text = stdio{out: &stdout, err: &stderr}, on, "x"
	err = s.list(ctx)
	return stdout.String(), stderr.String(), err
}

// TestSearchBounds: a search ends where it may look no further, in messages, in bytes and in what it has found, says where that was, and
// goes on from there without leaving one out. Red without each of the three bounds in run, and without Before.
func TestSearchBounds(t *testing.T) {
	every := func(n message.ID) func(message.ID) (bool, error) {
		return func(id message.ID) (bool, error) { return id%n == 0, nil }
	}
	for name, c := range map[string]struct {
		search search
		shelf  shelf
		found  int
		told   string
	}{
		"all":      {search{most: 1000}, shelf{last: 350, each: every(100)}, 3, "looked at 350 messages, all that there are"},
		"messages": {search{most: 120}, shelf{last: 350, each: every(100)}, 1, "looked at 120 messages, back to message 231 of "},
		"bytes": {search{most: 1000}, shelf{last: 350, size: searchBytes / 8, each: every(100)}, 0,
			"looked at 8 messages and 1073741824 bytes of their bodies, back to message 343 of "},
		"found": {search{most: 1000, q: store.Query{Limit: 2}}, shelf{last: 350, each: every(100)}, 2, "looked at 151 messages, back to message 200 of "},
	} {
		t.Run(name, func(t *testing.T) {
			if c.search.q.Limit == 0 {
				c.search.q.Limit = 50
			}
			out, told, err := look(t.Context(), &c.search, &c.shelf)
			if err != nil || strings.Count(out, " body ") != c.found || !strings.Contains(told, c.told) {
				t.Errorf("%v\n%s%s", err, out, told)
			}
			for _, q := range c.shelf.asked {
				if q.Limit != searchPage {
					t.Errorf("a step of %d messages", q.Limit)
				}
			}
		})
	}
	total, before := 0, message.ID(0)
	for range 10 {
		s := search{most: 120, q: store.Query{Limit: 2, Before: before}}
		if _, _, err := look(t.Context(), &s, &shelf{last: 350, each: every(50)}); err != nil {
			t.Fatal(err)
		}
		if total += len(s.found); s.looked.All {
			break
		}
		before = s.looked.Before
	}
	if total != 7 {
		t.Errorf("%d found in steps, of 7", total)
	}
}

// TestSearchEnded: a search that is ended tells what it has found and how far it came, with the reason. Red without causeOf in list, and
// with an error that ends it before the table.
func TestSearchEnded(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := search{most: 1000, q: store.Query{Limit: 50}, asJSON: asJSON}
		ctrlC := errors.New("ended by interrupt")
		out, told, err := look(ctx, &s, &shelf{last: 350, each: func(id message.ID) (bool, error) {
			if id == 300 {
				cancel(ctrlC)
				return false, ctx.Err()
			}
			return id == 310, nil
		}})
		if !errors.Is(err, ctrlC) || !strings.Contains(out, "310") || strings.Contains(out+told, "all that") {
			t.Errorf("%v\n%s%s", err, out, told)
		}
		if asJSON && !strings.Contains(out, `{"looked":{"messages":50,"bytes":0,"all":false,"before":301`) || !asJSON &&
			!strings.Contains(told, "looked at 50 messages, back to message 301 of ") {
			t.Errorf("%s%s", out, told)
		}
	}
}

// TestSearchPurged: a message that is purged under the search is passed over. Red without the look at ErrNotFound in one.
func TestSearchPurged(t *testing.T) {
	s := search{most: 1000, q: store.Query{Limit: 50}}
	out, told, err := look(t.Context(), &s, &shelf{last: 3, each: func(id message.ID) (bool, error) {
		if id == 2 {
			return false, store.ErrNotFound
		}
		return true, nil
	}})
	if err != nil || len(s.found) != 2 || !strings.Contains(told, "looked at 3 messages, all that") {
		t.Errorf("%v\n%s%s", err, out, told)
	}
}

// queue is a store with messages of two inbounds, of which b is held. Some have ended; most of the others await their router, and few
// are with a handler, which is not held.
type queue struct {
	shelf
}

func (*queue) of(id message.ID) message.Message {
	m := message.Message{ID: id, Received: time.Unix(int64(id), 0), Inbound: []string{"a", "b"}[id/3%2], Disposition: message.Received}
	switch id % 10 {
	case 0, 1:
		m.Disposition = message.Processed
	case 2:
		m.Disposition = message.Routed
	}
	return m
}

func (s *queue) Messages(_ context.Context, q store.Query) (list []message.Message, err error) {
	id := s.last
	if q.Before > 0 {
		id = q.Before - 1
	}
	for ; id > 0 && len(list) < q.Limit; id-- {
		if m := s.of(id); m.Disposition == q.Disposition {
			list = append(list, m)
		}
	}
	return list, nil
}

func (s *queue) Outline(_ context.Context, id message.ID) (store.Timeline, error) {
	return store.Timeline{Message: s.of(id)}, nil
}

func (*queue) Holds(context.Context) ([]message.Hold, error) {
	return []message.Hold{{Target: message.Target{Kind: message.KindInbound, Name: "b"}, Reason: "by hand"}}, nil
}

// TestSearchHeld: what waits behind a hold is found among all that is under way, each once and the newest first. Red without the look at
// held in one, without the sort in page, and without its bound.
func TestSearchHeld(t *testing.T) {
	q := &queue{shelf{last: 1000}}
	s := search{io: stdio{out: &bytes.Buffer{}, err: &bytes.Buffer{}}, r: q, stands: &standings{cfg: &config.Config{}, r: q}, held: true, most: 1000, q: store.Query{Limit: 1000}}
	s.stands.cfg.Store.Path = filepath.Join(t.TempDir(), "none.db")
	if err := s.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got, want []message.ID
	for _, f := range s.found {
		got = append(got, f.ID)
	}
	for id := q.last; id > 0; id-- {
		if m := q.of(id); m.Disposition == message.Received && m.Inbound == "b" {
			want = append(want, id)
		}
	}
	if !slices.Equal(got, want) || s.looked.Messages != 800 {
		t.Errorf("%d looked at: %v, not %v", s.looked.Messages, got, want)
	}
}
