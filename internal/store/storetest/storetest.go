// Package storetest is the one suite that every store passes. A store's own tests call Run with a function that opens a
// fresh store; what only one kind of store can promise (files, locks, plans) is tested beside that store.
//
// The property test drives random sequences of hand-overs against a model in memory; rapid prints the seed of a failure.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// Reopener is a store that can be closed and opened again in place, as after a restart of the engine. A store that open
// returns and that satisfies it is reopened at random by the property test.
type Reopener interface {
	store.Store
	// Reopen closes the store and returns the same one, open again.
	Reopen() (store.Store, error)
}

// Run runs the suite. open returns an empty store; it need not close it, but may, at the end of t.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	tests := []struct {
		name string
		run  func(*fixture)
	}{
		{"Receive", testReceive},
		{"ReceiveRouted", testReceiveRouted},
		{"Extend", testExtend},
		{"ReceiveKeepsBytes", testReceiveKeepsBytes},
		{"NextReceived", testNextReceived},
		{"Seen", testSeen},
		{"Refusals", testRefusals},
		{"RouteReserves", testRouteReserves},
		{"RouteRefusesBadPlans", testRouteRefusesBadPlans},
		{"RouteRecordsTheRouter", testRouteRecordsTheRouter},
		{"NextRuns", testNextRuns},
		{"Waiting", testWaiting},
		{"FillAndClose", testFillAndClose},
		{"SendTwice", testSendTwice},
		{"ReservedHeadBlocks", testReservedHeadBlocks},
		{"LanesAreApart", testLanesAreApart},
		{"UnknownDestination", testUnknownDestination},
		{"BadOutcomes", testBadOutcomes},
		{"Retry", testRetry},
		{"Dispositions", testDispositions},
		{"Reasons", testReasons},
		{"Stale", testStale},
		{"NotFound", testNotFound},
		{"Sizes", testSizes},
		{"Timeline", testTimeline},
		{"LargeBodies", testLargeBodies},
		{"LargeSends", testLargeSends},
		{"Purge", testPurge},
		{"PurgeRefusals", testPurgeRefusals},
		{"PurgeSources", testPurgeSources},
		{"Tags", testTags},
		{"Printed", testPrinted},
		{"Filters", testFilters},
		{"TagFilters", testTagFilters},
		{"Times", testTimes},
		{"Paging", testPaging},
		{"Contains", testContains},
		{"HoldAndRelease", testHoldAndRelease},
		{"HoldAfter", testHoldAfter},
		{"Park", testPark},
		{"Ready", testReady},
		{"KeepOrder", testKeepOrder},
		{"GiveUp", testGiveUp},
		{"UnorderedLane", testUnorderedLane},
		{"ReplayHandler", testReplayHandler},
		{"ReplayDelivery", testReplayDelivery},
		{"ReplayRouter", testReplayRouter},
		{"ReplayRefused", testReplayRefused},
		{"DeadLetters", testDeadLetters},
		{"Dismiss", testDismiss},
		{"Resubmit", testResubmit},
		{"Duplicates", testDuplicates},
		{"ReceiveAll", testReceiveAll},
		{"ReceiveAllOrNone", testReceiveAllOrNone},
		{"Rename", testRename},
		{"RenameIntoAnother", testRenameIntoAnother},
		{"Lanes", testLanes},
		{"Producers", testProducers},
		{"CanceledContext", testCanceledContext},
		{"Closed", testClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fixture{t, open(t)}
			tt.run(f)
			if err := f.s.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
				t.Errorf("close: %v", err)
			}
		})
	}
	t.Run("Model", func(t *testing.T) { testModel(t, open) })
}

// reporter is what the suite needs of *testing.T, and what *rapid.T has too.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// fixture is a store under test, with the steps that most tests take, each fatal if it fails.
type fixture struct {
	reporter
	s store.Store
}

func (f *fixture) ctx() context.Context { return context.Background() }

// must ends the test on an error.
func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("%v", err)
	}
}

// wantErr checks that an error wraps a sentinel.
func (f *fixture) wantErr(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Errorf("got error %v, want one that wraps %q", err, want)
	}
}

// wantRefused checks that a call was refused as wrong in itself: with an error, and one that names no state of the store.
func (f *fixture) wantRefused(what string, err error) {
	f.Helper()
	switch {
	case err == nil:
		f.Errorf("%s was accepted", what)
	case errors.Is(err, store.ErrUnknown), errors.Is(err, store.ErrStale), errors.Is(err, store.ErrNotFound):
		f.Errorf("%s: got error %v", what, err)
	}
}

func equal[T comparable](f *fixture, what string, got, want T) {
	f.Helper()
	if got != want {
		f.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (f *fixture) receive(inbound, body string) message.ID {
	f.Helper()
	id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: inbound, Body: []byte(body), Received: time.Now().UTC()})
	f.must(err)
	return id
}

// plan is a plan in short.
func plan(handler string, to ...string) store.Plan { return store.Plan{Handler: handler, To: to} }

// route routes without a router.
func (f *fixture) route(id message.ID, plans ...store.Plan) {
	f.Helper()
	f.must(f.s.Route(f.ctx(), id, plans, message.Outcome{State: message.RunSent}))
}

// routed receives and routes.
func (f *fixture) routed(inbound, body string, plans ...store.Plan) message.ID {
	f.Helper()
	id := f.receive(inbound, body)
	f.route(id, plans...)
	return id
}

// run returns the message's run of a handler, the latest one.
func (f *fixture) run(id message.ID, handler string) message.Run {
	f.Helper()
	for _, r := range slices.Backward(f.timeline(id).Runs) {
		if r.Handler == handler {
			return r
		}
	}
	f.Fatalf("message %d has no run of handler %q", id, handler)
	return message.Run{}
}

// end ends the message's run of a handler.
func (f *fixture) end(id message.ID, handler string, out message.Outcome) {
	f.Helper()
	f.must(f.s.EndRun(f.ctx(), f.run(id, handler).ID, out))
}

// sent is an outcome that sends; each send is an outbound and a body.
func sent(sends ...[2]string) message.Outcome {
	out := message.Outcome{State: message.RunSent, Attempts: 1}
	for _, s := range sends {
		out.Sends = append(out.Sends, message.Send{To: s[0], Body: []byte(s[1])})
	}
	return out
}

func filtered(reason string) message.Outcome {
	return message.Outcome{State: message.RunFiltered, Reason: reason, Attempts: 1}
}

func failed(reason string) message.Outcome {
	return message.Outcome{State: message.RunError, Reason: reason, Attempts: 1,
		Fault: &message.Fault{Kind: "handler", Type: "ValueError", Text: reason, Traceback: "line 1\nline 2"}}
}

func (f *fixture) timeline(id message.ID) store.Timeline {
	f.Helper()
	tl, err := f.s.Timeline(f.ctx(), id)
	f.must(err)
	return tl
}

// nextRuns returns the handler's next runs, whatever bodies they have.
func (f *fixture) nextRuns(handler string, most int) []message.Pending {
	f.Helper()
	next, err := f.s.NextRuns(f.ctx(), handler, most, 1<<40)
	f.must(err)
	return next
}

// nextRun returns the handler's next run and its message; nil, nil if there is none.
func (f *fixture) nextRun(handler string) (*message.Run, *message.Message) {
	f.Helper()
	next := f.nextRuns(handler, 1)
	if len(next) == 0 {
		return nil, nil
	}
	return &next[0].Run, &next[0].On
}

func (f *fixture) heads(outbound string, most int) []message.Delivery {
	f.Helper()
	heads, err := f.s.Heads(f.ctx(), outbound, most)
	f.must(err)
	for i, d := range heads {
		equal(f, "body of a head", d.Body == nil, true)
		heads[i].Body, err = f.s.DeliveryBody(f.ctx(), d.ID)
		f.must(err)
	}
	return heads
}

// head returns the head of the one lane of an outbound.
func (f *fixture) head(outbound string) message.Delivery {
	f.Helper()
	heads := f.heads(outbound, 1)
	if len(heads) != 1 {
		f.Fatalf("outbound %q has %d lanes with work, want 1: %s", outbound, len(heads), show(heads))
	}
	return heads[0]
}

// wantHead checks the head of the one lane of an outbound, by its name, state and body.
func (f *fixture) wantHead(outbound string, id message.ID, number int, state message.DeliveryState, body string) {
	f.Helper()
	got, want := f.head(outbound), message.Delivery{Message: id, Number: number, State: state, Body: []byte(body)}
	equal(f, "head of "+outbound, show([]message.Delivery{got}), show([]message.Delivery{want}))
}

func (f *fixture) delivered(d message.Delivery) {
	f.Helper()
	f.must(f.s.Delivered(f.ctx(), d.ID, message.Receipt{Text: "AA"}))
}

// wantDisposition checks a message's disposition, its reason, and that it has ended exactly if that is final.
func (f *fixture) wantDisposition(id message.ID, want message.Disposition, reason string) {
	f.Helper()
	m := f.timeline(id).Message
	equal(f, fmt.Sprintf("message %d", id), string(m.Disposition)+": "+m.Reason, string(want)+": "+reason)
	equal(f, fmt.Sprintf("message %d has an end", id), !m.Ended.IsZero(), want.Final())
}

// show prints deliveries as "0000000001-1 READY body".
func show(list []message.Delivery) string {
	s := ""
	for _, d := range list {
		s += fmt.Sprintf("[%s %s %q]", d.Name(), d.State, d.Body)
	}
	return s
}

func ids(list []message.Message) string {
	s := ""
	for _, m := range list {
		s += fmt.Sprintf(" %d", m.ID)
	}
	return s
}
