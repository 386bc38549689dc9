package config

import (
	"slices"
	"strings"
	"testing"
)

const routedLoop = `version = 1
[inbound.in]
mllp = { listen = ":6661" }
router = "adt.py:route"
[inbound.next]
mllp = { listen = "10.0.0.1:6662" }
handlers = ["admit"]
[handler.admit]
run = "adt.py:admit"
to = ["again"]
[handler.pass]
run = "adt.py:admit"
to = ["on"]
[outbound.again]
mllp = { connect = "HOST:6661" }
[outbound.on]
mllp = { connect = "10.0.0.1:6662" }
[outbound.idle]
file = { dir = "out" }
`

// TestWarnings: a way back through a router may be meant, and is allowed; it depends on what of the hosts is this machine. Guards
// seen red: without here's look at own nothing is known of the machine's name; with routers true in checkLoops it is refused.
func TestWarnings(t *testing.T) {
	const idle = `nothing is ever sent to outbound "idle": no handler names it`
	const again = "a loop of messages: outbound again -> inbound in -> handler admit -> outbound again"
	const on = "a loop of messages: outbound on -> inbound next -> handler admit -> outbound again -> inbound in -> handler pass -> outbound on"
	for host, want := range map[string][]string{
		"127.0.0.1": {again, on, idle}, "localhost": {again, on, idle}, "me.example": {again, on, idle}, "you.example": {idle},
	} {
		cfg := parseGood(t, strings.Replace(routedLoop, "HOST", host, 1))
		var got []string
		for _, w := range cfg.Warnings(func(h string) bool { return h == "me.example" }) {
			got = append(got, w.Msg)
			if w.Line == 0 || w.Hint == "" {
				t.Errorf("no place or hint: %+v", w)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", host, got)
		}
	}
	if w := parseGood(t, good).Warnings(nil); len(w) > 0 {
		t.Errorf("%v", w)
	}
}

func TestReaches(t *testing.T) {
	for _, c := range []struct {
		connect, listen string
		want            bool
	}{
		{"127.0.0.1:1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "127.0.0.1:2", false},
		{"127.0.0.1:1", "127.0.0.2:1", false},
		{"localhost:1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "localhost:1", true},
		{"[::1]:1", ":1", true},
		{"0.0.0.0:1", ":1", true},
		{"emr:1", ":1", false},
		{"emr:1", "EMR:1", true},
		{"127.0.0.1:0", "127.0.0.1:0", false},
		{"", "", false},
		{"127.0.0.1:01", "127.0.0.1:1", true},
	} {
		if got := reaches(c.connect, c.listen, loopback); got != c.want {
			t.Errorf("%s reaches %s: %v", c.connect, c.listen, got)
		}
	}
}
