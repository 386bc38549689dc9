package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// TestSearchBar: at a terminal a search shows that it goes on, and what it found when it has ended. Red without the bar.
func TestSearchBar(t *testing.T) {
	c := newConsole(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	s := search{io: stdio{out: &out, err: c.slave}, most: 1 << 30, text: "x", q: store.Query{Limit: 1}}
	s.r = &shelf{last: 1 << 30, each: func(message.ID) (bool, error) { // it ends when the bar has been seen
		return bytes.Contains([]byte(c.shown()), []byte("searching")), ctx.Err()
	}}
	if err := s.list(ctx); err != nil || len(s.found) != 1 {
		t.Errorf("%v\n%s", err, out.String())
	}
}
