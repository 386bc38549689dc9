package main

import (
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// Seen to is a message that failed when it was sent again, or when each part of it that failed, and was not tried anew, was dismissed.
// Red without each of the looks.
func TestSeenTo(t *testing.T) {
	at, gone := time.Now(), message.Dismissal{At: time.Now()}
	run := func(s message.RunState, replayed time.Time, d message.Dismissal) message.Run {
		return message.Run{State: s, Replayed: replayed, Dismissed: d}
	}
	delivery := func(s message.DeliveryState, replayed time.Time, d message.Dismissal) message.Delivery {
		return message.Delivery{State: s, Replayed: replayed, Dismissed: d}
	}
	none, never := message.Dismissal{}, time.Time{}
	for name, tt := range map[string]struct {
		stands message.Disposition
		again  []message.ID
		runs   []message.Run
		sent   []message.Delivery
		want   string
	}{
		"a run failed":                   {message.Error, nil, []message.Run{run(message.RunError, never, none)}, nil, ""},
		"it was dismissed":               {message.Error, nil, []message.Run{run(message.RunError, never, gone), run(message.RunSent, never, none)}, nil, "dismissed"},
		"one of two was dismissed":       {message.Error, nil, []message.Run{run(message.RunError, never, gone), run(message.RunError, never, none)}, nil, ""},
		"tried anew, and that dismissed": {message.Error, nil, []message.Run{run(message.RunError, at, none), run(message.RunError, never, gone)}, nil, "dismissed"},
		"a delivery failed":              {message.Error, nil, nil, []message.Delivery{delivery(message.Dead, never, none)}, ""},
		"a delivery was dismissed":       {message.Error, nil, nil, []message.Delivery{delivery(message.Dead, never, gone), delivery(message.Delivered, never, none)}, "dismissed"},
		"a delivery tried anew":          {message.Error, nil, nil, []message.Delivery{delivery(message.Dead, at, none), delivery(message.Dead, never, gone)}, "dismissed"},
		"sent again":                     {message.Error, []message.ID{5}, []message.Run{run(message.RunError, never, none)}, nil, "resubmitted"},
		"sent again though it went well": {message.Processed, []message.ID{5}, nil, nil, ""},
		"under way":                      {message.Routed, nil, []message.Run{run(message.RunError, never, gone)}, nil, ""},
	} {
		got := seenTo(store.Timeline{Message: message.Message{Disposition: tt.stands}, Resubmits: tt.again, Runs: tt.runs, Deliveries: tt.sent})
		if got != tt.want {
			t.Errorf("%s: seen to %q, want %q", name, got, tt.want)
		}
	}
}
