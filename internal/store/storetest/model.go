package storetest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// model is what a store is to do, in the plainest way: lists in memory, walked from end to end.
type model struct {
	messages []*modelMessage // by id
	planned  []pendingRun    // every run that was planned, in that order
	place    int
	held     map[message.Target]string // why
	streaks  map[message.Target]int    // failures in a row
	last     message.ID                // that was given out
	to       map[string]string         // by handler: the outbounds of its last extension
	none     map[string]bool           // the outbounds that keep no order
}

type modelMessage struct {
	id          message.ID
	inbound     string
	body        string
	disposition message.Disposition
	reason      string
	runs        []*modelRun
	deliveries  []*modelDelivery // by number
}

type modelRun struct {
	handler             string
	to                  []string
	state               message.RunState
	reason              string
	printed             []message.Printed
	replayed, dismissed bool
}

type modelDelivery struct {
	message             *modelMessage
	run                 *modelRun
	number              int
	outbound            string
	place, sub          int
	state               message.DeliveryState
	body                string
	reason              string
	attempts, rejected  int
	waits               bool // for a next try
	replayed, dismissed bool
}

func (m *model) receive(id message.ID, inbound, body string) *modelMessage {
	m.last = id
	msg := &modelMessage{id: id, inbound: inbound, body: body, disposition: message.Received}
	m.messages = append(m.messages, msg)
	return msg
}

func (m *model) route(msg *modelMessage, plans []store.Plan) {
	msg.disposition = message.Routed
	for _, p := range plans {
		run := &modelRun{handler: p.Handler, to: p.To, state: message.RunPending}
		msg.runs = append(msg.runs, run)
		m.planned = append(m.planned, pendingRun{msg, run})
		for _, to := range p.To {
			m.place++
			msg.add(&modelDelivery{run: run, outbound: to, place: m.place, state: message.Reserved})
		}
	}
	msg.settle()
}

func (m *model) failRoute(msg *modelMessage, out message.Outcome) {
	reason := out.Reason
	m.streak(message.Target{Kind: message.KindInbound, Name: msg.inbound}, out)
	msg.runs = append(msg.runs, &modelRun{state: message.RunError, reason: reason, printed: out.Printed})
	msg.settle()
}

func (msg *modelMessage) add(d *modelDelivery) {
	d.message, d.number = msg, len(msg.deliveries)+1
	msg.deliveries = append(msg.deliveries, d)
}

func (m *model) endRun(msg *modelMessage, run *modelRun, out message.Outcome) {
	run.state, run.reason, run.printed = out.State, out.Reason, out.Printed
	m.streak(message.Target{Kind: message.KindHandler, Name: run.handler}, out)
	first := map[string]*modelDelivery{}
	for _, d := range msg.deliveries {
		if d.run == run {
			first[d.outbound] = d
		}
	}
	sends := map[string]int{}
	for _, s := range out.Sends {
		d := first[s.To]
		if n := sends[s.To]; n > 0 {
			d = &modelDelivery{run: run, outbound: s.To, place: d.place, sub: n}
			msg.add(d)
		}
		sends[s.To]++
		d.state, d.body = message.Ready, string(s.Body)
	}
	for to, d := range first {
		if sends[to] == 0 {
			d.state = message.Closed
		}
	}
	msg.settle()
}

func (d *modelDelivery) delivered() {
	d.attempts++
	d.state = message.Delivered
	d.message.settle()
}

func (d *modelDelivery) retry(reason string, rejected, waits bool) {
	d.attempts++
	d.waits = waits
	if rejected {
		d.rejected++
	}
	d.reason = reason
}

func (d *modelDelivery) bury(reason string) {
	d.attempts++
	d.rejected++
	d.state, d.reason = message.Dead, reason
	d.message.settle()
}

func (d *modelDelivery) open() bool { return d.state == message.Reserved || d.state == message.Ready }

func (m *model) hold(t message.Target, reason string) {
	if _, ok := m.held[t]; !ok {
		m.held[t] = reason
	}
}

// streak is the rule of failures in a row.
func (m *model) streak(of message.Target, out message.Outcome) {
	if out.State != message.RunError {
		m.streaks[of] = 0
		return
	}
	m.streaks[of]++
	if n := m.streaks[of]; out.HoldAfter > 0 && n >= out.HoldAfter {
		m.hold(of, strings.TrimSpace(fmt.Sprintf("%d failures in a row, the last: %s", n, out.Reason)))
	}
}

// release ends the holds of a target and returns the lanes that were held.
func (m *model) release(t message.Target) (lanes []message.Target) {
	for h := range m.held {
		if h.Kind == t.Kind && h.Name == t.Name && (t.Inbound == "" || t.Inbound == h.Inbound) {
			delete(m.held, h)
			if h.Inbound != "" {
				lanes = append(lanes, h)
			}
		}
	}
	m.streaks[t] = 0
	return lanes
}

// replay makes a new attempt of what failed. It says whether there was anything.
func (m *model) replay(msg *modelMessage) bool {
	found := false
	number := len(msg.deliveries)
	for _, r := range slices.Clone(msg.runs) {
		if r.state != message.RunError || r.replayed {
			continue
		}
		r.replayed, found = true, true
		if r.handler == "" {
			msg.disposition, msg.reason = message.Received, ""
			return true
		}
		run := &modelRun{handler: r.handler, to: r.to, state: message.RunPending}
		msg.runs = append(msg.runs, run)
		m.planned = append(m.planned, pendingRun{msg, run})
		for _, to := range r.to {
			m.place++
			msg.add(&modelDelivery{run: run, outbound: to, place: m.place, state: message.Reserved})
		}
	}
	for _, d := range msg.deliveries[:number] {
		if d.state != message.Dead || d.replayed {
			continue
		}
		d.replayed, found = true, true
		m.place++
		msg.add(&modelDelivery{run: d.run, outbound: d.outbound, place: m.place, state: message.Ready, body: d.body})
	}
	if found {
		msg.disposition, msg.reason = message.Routed, ""
	}
	return found
}

// settle is the rule of dispositions.
func (msg *modelMessage) settle() {
	var failed, filtered []string
	planned, done := false, false
	for _, r := range msg.runs {
		planned = planned || r.handler != ""
		switch r.state {
		case message.RunPending:
			return
		case message.RunError:
			if !r.replayed {
				failed = append(failed, r.reason)
			}
		case message.RunFiltered:
			filtered = append(filtered, r.reason)
		}
	}
	for _, d := range msg.deliveries {
		switch {
		case d.open():
			return
		case d.state == message.Dead:
			if !d.replayed {
				failed = append(failed, d.reason)
			}
		case d.state == message.Delivered:
			done = true
		}
	}
	switch {
	case len(failed) > 0:
		msg.disposition, msg.reason = message.Error, failed[0]
	case done:
		msg.disposition = message.Processed
	case planned:
		msg.disposition = message.Filtered
		if len(filtered) > 0 {
			msg.reason = filtered[0]
		}
	default:
		msg.disposition = message.Unrouted
	}
}

// heads returns the head of each lane of an outbound, by place.
func (m *model) heads(outbound string, most int) (heads []*modelDelivery) {
	var open []*modelDelivery
	for _, msg := range m.messages {
		for _, d := range msg.deliveries {
			if d.outbound == outbound && d.open() {
				open = append(open, d)
			}
		}
	}
	slices.SortFunc(open, func(a, b *modelDelivery) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.sub, b.sub))
	})
	of := map[string]int{}
	for _, d := range open {
		if of[d.message.inbound]++; of[d.message.inbound] <= most {
			heads = append(heads, d)
		}
	}
	return heads
}

// ready lists what can be sent at an outbound, if that keeps no order: of each lane the first few, by place.
func (m *model) ready(outbound string, limit int) (list []*modelDelivery) {
	if !m.none[outbound] {
		return nil
	}
	for _, msg := range m.messages {
		for _, d := range msg.deliveries {
			if d.outbound == outbound && d.state == message.Ready {
				list = append(list, d)
			}
		}
	}
	slices.SortFunc(list, func(a, b *modelDelivery) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.sub, b.sub))
	})
	lanes := map[string]int{}
	return slices.DeleteFunc(list, func(d *modelDelivery) bool {
		lanes[d.message.inbound]++
		return lanes[d.message.inbound] > limit
	})
}

// giveUp buries what a release with bury does in a lane that was held.
func (m *model) giveUp(lane message.Target) {
	var list []*modelDelivery
	if m.none[lane.Name] {
		for _, d := range m.ready(lane.Name, math.MaxInt) {
			if d.message.inbound == lane.Inbound && d.attempts > 0 {
				list = append(list, d)
			}
		}
		parked := slices.DeleteFunc(slices.Clone(list), func(d *modelDelivery) bool { return d.waits })
		if len(parked) > 0 {
			list = parked
		} else if len(list) > 0 {
			list = list[:1]
		}
	} else {
		for _, h := range m.heads(lane.Name, 1) {
			if h.message.inbound == lane.Inbound && h.state == message.Ready && h.attempts > 0 {
				list = append(list, h)
			}
		}
	}
	for _, d := range list {
		d.state = message.Dead
		d.message.settle()
	}
}

// pendingRun is a run that awaits its handler, with its message.
type pendingRun struct {
	message *modelMessage
	run     *modelRun
}

// pending lists the runs that await their handlers, in the order in which they were planned.
func (m *model) extend(p store.Plan) {
	to := fmt.Sprint(slices.Sorted(slices.Values(p.To)))
	if m.to[p.Handler] == to {
		return
	}
	m.to[p.Handler] = to
	for _, r := range m.pending() {
		if r.run.handler != p.Handler {
			continue
		}
		place, has := 0, map[string]bool{}
		for _, d := range r.message.deliveries {
			if d.run == r.run {
				place, has[d.outbound] = cmp.Or(place, d.place), true
			}
		}
		for _, out := range p.To {
			if has[out] {
				continue
			}
			if place == 0 {
				m.place++
				place = m.place
			}
			r.run.to = append(slices.Clone(r.run.to), out)
			r.message.add(&modelDelivery{run: r.run, outbound: out, place: place, state: message.Reserved})
		}
	}
}

func (m *model) pending() []pendingRun {
	var list []pendingRun
	for _, r := range m.planned {
		if r.run.state == message.RunPending {
			list = append(list, r)
		}
	}
	return list
}
