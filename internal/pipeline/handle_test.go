package pipeline

import (
	"context"
	"testing"

	"coppice.dev/coppice/internal/message"
)

// TestHandlerAnswers: what an answer makes of the message, all or none. Guard seen red: without the check of destinations
// in outcome the store reports a breach, and the part holds its lane for ever.
func TestHandlerAnswers(t *testing.T) {
	send := func(to, body string) message.Send { return message.Send{To: to, Body: []byte(body)} }
	for _, c := range []struct {
		name         string
		answer       Answer
		disposition  message.Disposition
		reason       string
		emr, archive []string
	}{
		{name: "one send", answer: Answer{Sends: []message.Send{send("emr", "x")}},
			disposition: message.Processed, emr: []string{"x"}},
		{name: "sends to both, twice to one", answer: Answer{Sends: []message.Send{send("archive", "y"), send("emr", "x1"), send("emr", "x2")}},
			disposition: message.Processed, emr: []string{"x1", "x2"}, archive: []string{"y"}},
		{name: "empty body", answer: Answer{Sends: []message.Send{send("emr", "")}},
			disposition: message.Processed, emr: []string{""}},
		{name: "drop", answer: Answer{Dropped: true, Drop: "no MRN"}, disposition: message.Filtered, reason: "no MRN"},
		{name: "nothing", answer: Answer{}, disposition: message.Filtered, reason: "handler sent nothing"},
		{name: "unknown destination", answer: Answer{Sends: []message.Send{send("emr", "x"), send("lab", "y")}},
			disposition: message.Error, reason: `handler "admit" sent to "lab", which is not among its to = ["emr", "archive"]`},
		{name: "a destination of others", answer: Answer{Sends: []message.Send{send("secret", "x")}},
			disposition: message.Error, reason: `handler "admit" sent to "secret", which is not among its to = ["emr", "archive"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				emr, archive, secret := r.outbound("emr", nil), r.outbound("archive", nil), r.outbound("secret", nil)
				r.handler("admit", function(func(context.Context, *message.Message, int) (Answer, error) { return c.answer, nil }), "emr", "archive")
				r.handler("other", sendTo("secret"), "secret")
				r.inbound("adt", choose("admit"))
				r.start()
				r.receive("adt", "A01")
				r.is(1, c.disposition, c.reason)
				emr.got(t, c.emr...)
				archive.got(t, c.archive...)
				secret.got(t)
			})
		})
	}
}

// TestDispositionIsDerived: ERROR if any part failed, else PROCESSED if any was delivered, else FILTERED.
func TestDispositionIsDerived(t *testing.T) {
	fail := failing(fails(TheMessage, "handler", "ValueError", "bad"))
	drop := function(func(context.Context, *message.Message, int) (Answer, error) {
		return Answer{Dropped: true, Drop: "not ours"}, nil
	})
	for _, c := range []struct {
		name          string
		first, second function
		disposition   message.Disposition
		reason        string
	}{
		{"sent and failed", sendTo("emr"), fail, message.Error, "ValueError: bad"},
		{"sent and dropped", sendTo("emr"), drop, message.Processed, ""},
		{"dropped and failed", drop, fail, message.Error, "ValueError: bad"},
		{"dropped both", drop, sendTo(), message.Filtered, "not ours"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				r.outbound("emr", nil)
				r.handler("first", c.first, "emr")
				r.handler("second", c.second, "emr")
				r.inbound("adt", nil, "first", "second")
				r.start()
				r.receive("adt", "A01")
				r.is(1, c.disposition, c.reason)
			})
		})
	}
}

// TestOutcomeIsRecorded: what the function's answer says of itself goes into the run.
func TestOutcomeIsRecorded(t *testing.T) {
	inTime(t, func(r *rig) {
		r.outbound("emr", nil)
		r.handler("admit", function(func(_ context.Context, m *message.Message, _ int) (Answer, error) {
			return Answer{Sends: []message.Send{{To: "emr", Body: m.Body}}, Tags: map[string]string{"mrn": "7"}, Took: 3, Code: "c0de"}, nil
		}), "emr")
		r.inbound("adt", nil, "admit")
		r.start()
		r.receive("adt", "A01")
		out := r.outcome(1, "admit")
		if out.Attempts != 1 || out.Tags["mrn"] != "7" || out.Took != 3 || out.Code != "c0de" {
			t.Errorf("recorded %+v", out)
		}
	})
}
