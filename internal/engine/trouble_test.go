package engine

import (
	"fmt"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/sandbox"
)

const troubleTOML = `
version = 1
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
router = "feed.py:route_trouble"
hold_after = 0
[handler.trouble]
run = "feed.py:trouble"
to = ["emr"]
deadline = "500ms"
hold_after = 0
[outbound.emr]
mllp = { connect = %q }
`

// TestTrouble has a handler go wrong in every way, each message followed by a good one: each gives the disposition and
// the one-line reason that it should, and the next message is fine.
func TestTrouble(t *testing.T) {
	needPython(t)
	cases := []struct {
		what   string
		want   message.Disposition
		reason string
		cuts   int
	}{
		{"prints", message.Processed, "", 0},
		{"raises", message.Error, "ValueError: bad PID", 0},
		{"nonsense", message.Error, `result: handler "trouble" returned an int; `, 0},
		{"unknown destination", message.Error, `handler "trouble" sent to "elsewhere", which is not among its to = ["emr"]`, 0},
		{"sleeps", message.Error, "poison: no answer by the deadline, after 500ms (2 attempts)", 2},
		{"exits", message.Error, "poison: worker died: exit status 3 (2 attempts)", 2},
		{"dies", message.Error, "poison: worker died: signal: segmentation fault (2 attempts)", 2},
		{"writes to the wire", message.Error, "poison: protocol violation frame-cap: a frame of 1751477356 bytes, the cap is 67108864; its length is the text \"hell\": something prints on the protocol's descriptor (2 attempts)", 2},
		{"drops", message.Filtered, "not for us", 0},
		{"nothing", message.Filtered, "handler sent nothing", 0},
		{"route raises", message.Error, "LookupError: no table", 0},
		{"route nowhere", message.Unrouted, "", 0},
		{"route unknown", message.Error, `router named "nobody", which is not a handler; there are trouble`, 0},
	}
	receiver := newEMR(t, nil)
	cuts := make(chan sandbox.Cut, 100)
	e := serve(t, folder(t, fmt.Sprintf(troubleTOML, receiver.Addr())), Options{Sandbox: sandbox.Observer{Cut: func(c sandbox.Cut) {
		if c.Why != nil {
			cuts <- c
		}
	}}})
	client := dial(t, e.Addr("feed"))
	for i, c := range cases {
		exchange(t, client, troubleMessage(c.what))
		exchange(t, client, troubleMessage("fine"))
		e.quiet(t, int64(2*i+2))
		bad, good := message.ID(2*i+1), message.ID(2*i+2)
		got, err := e.Store().Timeline(t.Context(), bad)
		if err != nil {
			t.Fatal(err)
		}
		reason := afterDeadline(got.Message.Reason)
		if got.Message.Disposition != c.want || !strings.HasPrefix(reason, c.reason) || strings.Contains(reason, "\n") {
			t.Errorf("%s: %s, %q; want %s, %q", c.what, got.Message.Disposition, reason, c.want, c.reason)
		}
		if next, err := e.Store().Timeline(t.Context(), good); err != nil || next.Message.Disposition != message.Processed {
			t.Errorf("the message after %s: %s, %q, %v", c.what, next.Message.Disposition, next.Message.Reason, err)
		}
		if c.what == "raises" && !strings.Contains(got.Runs[1].Outcome.Fault.Traceback, "feed.py") {
			t.Errorf("traceback: %q", got.Runs[1].Outcome.Fault.Traceback)
		}
		for range c.cuts {
			if cut := <-cuts; cut.Err != nil || cut.Message != int64(bad) {
				t.Errorf("%s: cut %+v", c.what, cut)
			}
		}
	}
	e.end(t)
	if len(cuts) > 0 {
		t.Errorf("%d workers too many were cut", len(cuts))
	}
}

// afterDeadline takes out by how much a busy machine was late.
func afterDeadline(reason string) string {
	head, tail, ok := strings.Cut(reason, "after ")
	if !ok {
		return reason
	}
	_, tail, _ = strings.Cut(tail, " ")
	return head + "after 500ms " + tail
}

func troubleMessage(what string) []byte {
	return fmt.Appendf(nil, "MSH|^~\\&|A|B|C|D|20260101||ADT^A01|1|P|2.5\rZZZ|%s\r", what)
}
