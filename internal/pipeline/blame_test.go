package pipeline

import (
	"context"
	"errors"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
)

// TestBlame: who pays for a failed attempt. Guards seen red: without `failure.Blame == TheWorker` in attempts the message's
// fault costs two attempts; without `n < most` a worker is tried after the last one that was allowed.
func TestBlame(t *testing.T) {
	crash := fails(TheWorker, "crash", "", "killed by signal 9")
	for _, c := range []struct {
		name     string
		errs     []error // of the attempts on the bad message; then it is answered
		allowed  int
		reason   string
		attempts int
		kind     string
	}{
		{"the message", []error{fails(TheMessage, "handler", "KeyError", "'PID'")}, 2, "KeyError: 'PID'", 1, "handler"},
		{"a worker once", []error{crash}, 2, "", 2, ""},
		{"two workers", []error{crash, crash}, 2, "poison: killed by signal 9 (2 attempts)", 2, "crash"},
		{"the only worker", []error{crash}, 1, "poison: killed by signal 9 (1 attempt)", 1, "crash"},
		{"a worker, then the message", []error{crash, fails(TheMessage, "handler", "E", "x")}, 2, "E: x", 2, "handler"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				var attempts []int
				emr := r.outbound("emr", nil)
				r.handler("admit", function(func(ctx context.Context, m *message.Message, attempt int) (Answer, error) {
					if m.Type == "bad" {
						attempts = append(attempts, attempt)
						if len(attempts) <= len(c.errs) {
							return Answer{}, c.errs[len(attempts)-1]
						}
					}
					return sendTo("emr")(ctx, m, attempt)
				}), "emr")
				r.cfg.Handlers[0].Attempts = c.allowed
				r.inbound("adt", nil, "admit")
				r.start()
				r.receive("adt", "bad", "A01")
				r.is(2, message.Processed, "")
				out := r.outcome(1, "admit")
				if out.Reason != c.reason || out.Attempts != c.attempts || len(attempts) != c.attempts {
					t.Errorf("recorded %+v after attempts %d, want %d and %q", out, attempts, c.attempts, c.reason)
				}
				if c.reason == "" {
					emr.got(t, "bad", "A01")
					return
				}
				r.is(1, message.Error, c.reason)
				emr.got(t, "A01")
				if out.Fault == nil || out.Fault.Kind != c.kind {
					t.Errorf("recorded fault %+v, want kind %q", out.Fault, c.kind)
				}
			})
		})
	}
}

// TestNobodysFault: the handler is held with growing waits, no message pays, order is kept. Guard seen red: with the
// Nobody case of attempts taken out, the first message ends in ERROR.
func TestNobodysFault(t *testing.T) {
	for name, fault := range map[string]error{
		"plain error": errors.New("out of memory"), "said so": fails(Nobody, "boot", "", "worker cannot boot")} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				var at []time.Duration
				began := time.Now()
				emr := r.outbound("emr", nil)
				r.handler("admit", function(func(ctx context.Context, m *message.Message, attempt int) (Answer, error) {
					if attempt != 1 {
						t.Errorf("attempt %d was charged to message %d", attempt, m.ID)
					}
					at = append(at, time.Since(began))
					if time.Since(began) < 10*time.Second {
						return Answer{}, fault
					}
					return sendTo("emr")(ctx, m, attempt)
				}), "emr")
				r.inbound("adt", nil, "admit")
				r.start()
				r.receive("adt", "A01", "A02", "A03")
				r.pass(9 * time.Second)
				r.is(1, message.Routed, "")
				emr.got(t)
				r.pass(10 * time.Second)
				emr.got(t, "A01", "A02", "A03")
				// Held after 0, about 1, 3 and 7 s; released after about 15 s.
				if len(at) != 7 || r.saw("held handler admit") != 4 || r.saw("released handler admit") != 1 {
					t.Errorf("ran at %v; observer saw %q", at, r.events)
				}
			})
		})
	}
}

// TestReleasedByAnEmptyQueue: a lane that was held through a store that could not be read is released once it can, although
// there is no work. Guard seen red: with over called after a run alone, "released" is never seen.
func TestReleasedByAnEmptyQueue(t *testing.T) {
	inTime(t, func(r *rig) {
		broken := true
		r.store.fault = func(call string) (error, bool) {
			if broken && call != "Extend" { // for which all of them wait
				return errFull, false
			}
			return nil, false
		}
		r.outbound("emr", nil)
		r.handler("admit", sendTo("emr"), "emr")
		r.inbound("adt", nil, "admit")
		r.start()
		r.pass(time.Second / 2)
		r.store.mu.Lock()
		broken = false
		r.store.mu.Unlock()
		r.pass(time.Second)
		for _, lane := range []string{"inbound adt", "handler admit", "outbound emr"} {
			if r.saw("held "+lane) != 1 || r.saw("released "+lane) != 1 {
				t.Errorf("observer saw %q", r.events)
			}
		}
	})
}

// TestPoisonOutlivesAHold: a message that kills every worker, where the next worker does not start at once, is poison all
// the same. Guard seen red: with tries that start anew with each run, the handler is held for ever.
func TestPoisonOutlivesAHold(t *testing.T) {
	inTime(t, func(r *rig) {
		calls := 0
		emr := r.outbound("emr", nil)
		r.handler("admit", function(func(ctx context.Context, m *message.Message, attempt int) (Answer, error) {
			if m.Type != "bad" {
				return sendTo("emr")(ctx, m, attempt)
			}
			if calls++; calls%2 == 0 {
				return Answer{}, errors.New("no memory for a worker")
			}
			return Answer{}, fails(TheWorker, "crash", "", "out of memory")
		}), "emr")
		r.inbound("adt", nil, "admit")
		r.start()
		r.receive("adt", "bad", "A01")
		r.pass(2 * time.Second)
		r.is(1, message.Error, "poison: out of memory (2 attempts)")
		emr.got(t, "A01")
	})
}
