package connect_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/connect"
)

func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		late, cancel := connect.Grace(ctx, time.Second)
		defer cancel()
		time.Sleep(time.Hour) // of the bubble: it does not end by itself
		stop()
		begin := time.Now()
		<-late.Done()
		if took := time.Since(begin); took != time.Second {
			t.Errorf("ended %v after its parent, want 1s", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		late, cancel := connect.Grace(ctx, time.Second)
		stop()
		cancel() // also within the grace; a goroutine that stayed would fail the bubble
		if late.Err() == nil {
			t.Error("alive after its cancel")
		}
	})
}

func TestOneLine(t *testing.T) {
	for _, tc := range []struct {
		in   string
		max  int
		want string
	}{
		{"plain", 10, "plain"},
		{"a\r\n\x1b[2Jb", 30, `a\x0d\x0a\x1b[2Jb`},
		{"\xff\u0085\u2028", 30, "\ufffd" + `\x85\u2028`},
		{"0123456789abcdef", 10, "0123456789..."},
		{"0123456789", 10, "0123456789"},
	} {
		if got := connect.OneLine(tc.in, tc.max); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.in, got, tc.want)
		}
	}
}
