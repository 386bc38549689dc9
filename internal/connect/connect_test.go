package connect_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
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

const (
	alone = "MSH|^~\\&|||||||ADT^A01|1|P|2.5\rPID|1\r"
	other = "MSH|^~\\&|||||||ADT^A08|2|P|2.5\rPID|2\r"
)

// A batch is one message, or with split its messages, each with its own type and control id; all else is one message anyway. Red
// with split ignored, and with File left on each.
func TestReceive(t *testing.T) {
	file := &message.Source{Path: "/in/x"}
	for body, want := range map[string]map[bool]string{
		alone:         {false: "[ADT^A01 1 true]", true: "[ADT^A01 1 true]"},
		alone + other: {false: "[ADT^A01 1 true]", true: "[ADT^A01 1 true]"}, // no envelope: a message of many segments
		"{}":          {false: "[  true]", true: "[  true]"},
		"":            {false: "[  true]", true: "[  true]"},
		"BHS|^~\\&|||||||||9\r" + alone + other + "BTS|2\r": {false: "[ 9 true]", true: "[ADT^A01 1 true][ADT^A08 2 false]"},
		"BHS|^~\\&|||||||||9\r" + alone + "BTS|2\r":         {false: "[ 9 true]", true: "malformed"},
	} {
		for split, want := range want {
			sink := connecttest.NewSink()
			ids, err := connect.Receive(t.Context(), sink, message.Incoming{Inbound: "in", Body: []byte(body), File: file}, split)
			got := ""
			for _, m := range sink.Messages() {
				got += fmt.Sprintf("[%s %s %t]", m.Type, m.ControlID, m.File != nil)
			}
			if errors.Is(err, hl7.ErrBatch) && got == "" {
				got = "malformed"
			}
			if got != want || err == nil && len(ids) != len(sink.Messages()) {
				t.Errorf("%q, split %t: %s, ids %v, %v; want %s", body, split, got, ids, err, want)
			}
		}
	}
}
