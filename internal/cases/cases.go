// Package cases keeps messages as files, each beside what is expected of it, for `coppice test`. docs/TEST.md is the format's
// specification.
package cases

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
)

// Result is what becomes of one message by the code of a configuration, if all that it sends is taken.
type Result struct {
	// What the handlers are told of the message.
	Inbound  string
	Message  message.ID
	Received time.Time

	Disposition message.Disposition
	Reason      string // for people: that of the part which decided
	Router      *Part  // only if it failed
	Handlers    []Part // as they were planned
	Tags        map[string]string
}

// Part is what the router or one handler did.
type Part struct {
	Handler   string // empty for the router
	State     message.RunState
	Fault     string // the fault's kind, if it failed
	Reason    string // one line, if it failed or sends nothing
	Traceback string
	Sends     []message.Send // by name of the outbound; those to one outbound in their order
}

// Measured says whether the reason holds what was measured, such as how long a worker took, and so differs from one time to
// the next: only the fault's kind can be expected.
func (p Part) Measured() bool {
	switch p.Fault {
	case "deadline", "limit", "crash", "violation":
		return true
	}
	return false
}

// Of is the result of runs that have ended. Of two runs of one handler the later one counts.
func Of(m message.Message, runs []message.Run, tags map[string]string) Result {
	r := Result{Inbound: m.Inbound, Message: m.ID, Received: m.Received.UTC(), Tags: tags}
	var last []message.Run
	for _, run := range runs {
		if i := slices.IndexFunc(last, func(l message.Run) bool { return l.Handler == run.Handler }); i >= 0 {
			last[i] = run
		} else {
			last = append(last, run)
		}
	}
	for _, run := range last {
		p := partOf(run)
		switch {
		case run.Handler != "":
			r.Handlers = append(r.Handlers, p)
		case run.State == message.RunError:
			r.Router = &p
		}
	}
	r.Disposition, r.Reason = pipeline.Derive(last)
	r.Reason = oneLine(r.Reason)
	return r
}

func partOf(run message.Run) Part {
	p := Part{Handler: run.Handler, State: run.State, Reason: oneLine(run.Outcome.Reason), Sends: slices.Clone(run.Outcome.Sends)}
	if f := run.Outcome.Fault; f != nil {
		p.Fault, p.Traceback = f.Kind, f.Traceback
	}
	slices.SortStableFunc(p.Sends, func(a, b message.Send) int { return strings.Compare(a.To, b.To) })
	return p
}

// FromStore is the result of a stored message; false while its router or a handler has not ended. Whether what was sent has
// arrived says nothing about the code.
func FromStore(t store.Timeline) (Result, bool) {
	if t.Message.Disposition == message.Received {
		return Result{}, false
	}
	runs := slices.Clone(t.Runs)
	for i := range runs {
		if runs[i].State == message.RunPending {
			return Result{}, false
		}
		runs[i].Outcome.Sends = append(runs[i].Outcome.Sends, sendsOf(runs[i].Handler, t.Deliveries)...)
	}
	return Of(t.Message, runs, t.Tags), true
}

// sendsOf are what a handler has sent, those to one outbound in their order. A delivery that was replayed is one send, which stands
// where it stood at first.
func sendsOf(handler string, deliveries []message.Delivery) (sends []message.Send) {
	type what struct{ to, body string }
	again := map[what]int{}        // the deliveries that take the place of others, and are still to come
	for _, d := range deliveries { // by number
		if d.Handler != handler || d.State == message.Closed || d.State == message.Reserved {
			continue
		}
		key := what{d.Outbound, string(d.Body)}
		if again[key] > 0 {
			again[key]--
		} else {
			sends = append(sends, message.Send{To: d.Outbound, Body: d.Body})
		}
		if !d.Replayed.IsZero() {
			again[key]++
		}
	}
	return sends
}

// longest is how much of a reason is kept: less than a store keeps.
const longest = 300

// oneLine makes a text fit a line, so that one which a store has kept, and has done the same to, is equal to it.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), 8*longest)], "\uFFFD"))
	s = strings.TrimSpace(s)
	if len(s) <= longest {
		return s
	}
	cut := longest
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strings.TrimSpace(s[:cut])
}
