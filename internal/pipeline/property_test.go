package pipeline

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// TestAnyScenario acts out random worlds: any wiring, any behaviour, any ends of the engine. In each, every message ends
// once and as the model says, everything arrives that it says, repeated only where an engine was cut off in the middle of a
// send, and in each lane that keeps order in receive order. A failure prints its seed (-rapid.seed).
//
// Guards seen red here: a handler that is planned twice, a destination that is not checked, a reserved head that is sent, a
// worker's death by the stop that is charged to the message, a delivery sent again because the store did not take its
// end (without last).
func TestAnyScenario(t *testing.T) {
	told := false
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScenario(rt)
		var wrong []string
		synctest.Test(t, func(*testing.T) { wrong = actOut(s) })
		if len(wrong) > 0 {
			if !told { // who of two goroutines is first at one instant is not drawn, so rapid may not see it again
				t.Logf("seen first: %q", wrong)
				told = true
			}
			rt.Fatalf("%q", wrong)
		}
	})
}

// actOut returns what went wrong.
func actOut(s *scenario) []string {
	w := newWorld(s)
	ctx, cancel := context.WithCancel(context.Background())
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		w.feed(ctx)
	}()
	done := false
	for _, life := range append(slices.Clone(s.lives), scenLife{}) {
		done = w.live(life, fed)
		w.mu.Lock()
		w.life++
		w.mu.Unlock()
	}
	cancel()
	<-fed
	if !done {
		w.wrong = append(w.wrong, fmt.Sprintf("%d messages are never done", w.store.unfinished()))
	}
	return append(append(w.wrong, w.store.breaches...), w.compare()...)
}

// compare holds what happened against the model.
func (w *world) compare() (wrong []string) {
	dispositions, lanes := w.want()
	for i, m := range w.store.messages {
		if m.Disposition != dispositions[i] {
			wrong = append(wrong, fmt.Sprintf("message %d is %s (%s), want %s", m.ID, m.Disposition, m.Reason, dispositions[i]))
		}
	}
	first := map[string][]string{}
	last := map[string]arrival{}        // by body
	cut := map[string]map[string]bool{} // by life and outbound: the bodies that were on their way at the end, and repeat
	for _, a := range w.arrivals {
		before, repeated := last[a.body]
		last[a.body] = a
		if !repeated {
			first[a.lane] = append(first[a.lane], a.body)
			continue
		}
		end := fmt.Sprintf("o%d in life %d", a.out, before.life)
		switch {
		case before.life == a.life:
			wrong = append(wrong, fmt.Sprintf("%q arrived twice in life %d", a.body, a.life))
		case w.lives[before.life].end == stops && !w.troubled[before.life]:
			wrong = append(wrong, fmt.Sprintf("%q repeats after a stop with grace", a.body))
		}
		if cut[end] == nil {
			cut[end] = map[string]bool{}
		}
		if cut[end][a.body] = true; len(cut[end]) > w.most(a.out) {
			wrong = append(wrong, fmt.Sprintf("%v all repeat after %s", cut[end], end))
		}
	}
	for i := range w.inbounds {
		for o := range w.outbounds {
			l := lane(i, o)
			if w.parallel[o] > 0 {
				slices.Sort(first[l])
				slices.Sort(lanes[l])
			}
			if !slices.Equal(first[l], lanes[l]) {
				wrong = append(wrong, fmt.Sprintf("lane %s: arrived %q, want %q", l, first[l], lanes[l]))
			}
		}
	}
	return wrong
}
