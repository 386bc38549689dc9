package storetest

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// testModel makes random hand-overs in a store and in the model, and compares the two after each.
func testModel(t *testing.T, open func(t *testing.T) store.Store) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &machine{fixture: &fixture{rt, open(t)}, model: model{held: map[message.Target]string{}, streaks: map[message.Target]int{},
			none: map[string]bool{}, to: map[string]string{}}}
		defer func() { _ = m.s.Close() }()
		actions := map[string]func(*rapid.T){
			"receive":       m.receive,
			"receiveRouted": m.receiveRouted,
			"receiveAll":    m.receiveAll,
			"route":         m.route,
			"failRoute":     m.failRoute,
			"endRun":        m.endRun,
			"stray":         m.stray,
			"deliver":       m.deliver,
			"retry":         m.retry,
			"bury":          m.bury,
			"park":          m.park,
			"release":       m.release,
			"keepOrder":     m.keepOrder,
			"extend":        m.extend,
			"replay":        m.replay,
			"dismiss":       m.dismiss,
			"stale":         m.stale,
			"purge":         m.purgeStep,
			"":              m.check,
		}
		if _, ok := m.s.(Reopener); ok {
			actions["reopen"] = m.reopen
		}
		rt.Repeat(actions)
		for _, msg := range m.model.messages {
			m.checkTimeline(msg)
		}
	})
}

// machine is a store and its model. Few names, so that lanes and handlers meet.
type machine struct {
	*fixture
	model   model
	touched *modelMessage // by the last action
}

func inbounds() []string  { return []string{"in1", "in2", "in3"} }
func outbounds() []string { return []string{"out1", "out2", "out3"} }
func handlers() []string  { return []string{"h1", "h2", "h3"} }

func drawReason(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "no", "bad segment", "später"}).Draw(t, "reason")
}

func drawBody(t *rapid.T, label string) string {
	body := rapid.SampledFrom([]string{"", "a", "MSH|^~\\&|", "\x00\xff\x0b", "", "b", "MSH|", "large"}).Draw(t, label)
	if body == "large" {
		return string(large(256<<10 + 1))
	}
	return body
}

// brief shows a body, or which it is if it is long.
func brief[B string | []byte](b B) string {
	if len(b) > 100 {
		return fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256([]byte(b)))
	}
	return fmt.Sprintf("%q", b)
}

func drawHoldAfter(t *rapid.T) int { return rapid.IntRange(0, 2).Draw(t, "hold after") }

// pick draws one of a list, or skips the action if there is none.
func pick[T any](t *rapid.T, list []T, label string) T {
	if len(list) == 0 {
		t.Skip("no " + label)
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(t, label)]
}

func (m *machine) receive(t *rapid.T) {
	inbound, body := pick(t, inbounds(), "inbound"), drawBody(t, "body")
	id := m.fixture.receive(inbound, body)
	if id <= m.model.last {
		t.Fatalf("id %d came after id %d", id, m.model.last)
	}
	m.touched = m.model.receive(id, inbound, body)
}

func (m *machine) receiveRouted(t *rapid.T) {
	inbound, body, plans := pick(t, inbounds(), "inbound"), drawBody(t, "body"), drawPlans(t)
	may := len(plans) > 0 && m.model.held[message.Target{Kind: message.KindInbound, Name: inbound}] == "" &&
		!slices.ContainsFunc(m.model.messages, func(msg *modelMessage) bool {
			return msg.inbound == inbound && msg.disposition == message.Received
		})
	id, runs, err := m.s.ReceiveRouted(m.ctx(), message.Incoming{Inbound: inbound, Body: []byte(body)}, plans)
	m.must(err)
	routed := len(runs) > 0
	if routed != may || id <= m.model.last {
		t.Fatalf("id %d, routed %v; want an id over %d, routed %v", id, routed, m.model.last, may)
	}
	m.touched = m.model.receive(id, inbound, body)
	if routed {
		m.model.route(m.touched, plans)
	}
	m.checkMade(runs)
}

// receiveAll receives some messages together, or, where the last of them is wrong, none.
func (m *machine) receiveAll(t *rapid.T) {
	var all []message.Incoming
	for range rapid.IntRange(1, 5).Draw(t, "together") {
		all = append(all, message.Incoming{Inbound: pick(t, inbounds(), "inbound"), Body: []byte(drawBody(t, "body")), Received: time.Now().UTC()})
	}
	if rapid.Bool().Draw(t, "wrong") {
		all = append(all, message.Incoming{Inbound: "in1", Resubmits: m.model.last + 1000})
		_, err := m.s.ReceiveAll(m.ctx(), all)
		m.wantErr(err, store.ErrNotFound)
		return
	}
	taken, err := m.s.ReceiveAll(m.ctx(), all)
	m.must(err)
	for i, in := range all {
		if taken[i].ID <= m.model.last || taken[i].Duplicate {
			t.Fatalf("%+v came after id %d", taken[i], m.model.last)
		}
		m.model.receive(taken[i].ID, in.Inbound, string(in.Body))
	}
	m.touched = m.model.messages[len(m.model.messages)-1]
}

// pickMessage draws a message that stands at a disposition.
func (m *machine) pickMessage(t *rapid.T, d message.Disposition) *modelMessage {
	var list []*modelMessage
	for _, msg := range m.model.messages {
		if msg.disposition == d {
			list = append(list, msg)
		}
	}
	m.touched = pick(t, list, "message")
	return m.touched
}

func (m *machine) route(t *rapid.T) {
	msg, plans := m.pickMessage(t, message.Received), drawPlans(t)
	m.must(m.s.Route(m.ctx(), msg.id, plans, message.Outcome{State: message.RunSent}))
	m.model.route(msg, plans)
}

func drawPlans(t *rapid.T) (plans []store.Plan) {
	for _, h := range rapid.SliceOfNDistinct(rapid.SampledFrom(handlers()), 0, 3, rapid.ID[string]).Draw(t, "handlers") {
		to := rapid.SliceOfNDistinct(rapid.SampledFrom(outbounds()), 0, 3, rapid.ID[string]).Draw(t, "to")
		plans = append(plans, store.Plan{Handler: h, To: to})
	}
	return plans
}

func (m *machine) failRoute(t *rapid.T) {
	msg, out := m.pickMessage(t, message.Received), failed(drawReason(t))
	out.HoldAfter, out.Printed = drawHoldAfter(t), drawPrinted(t)
	m.must(m.s.FailRoute(m.ctx(), msg.id, out))
	m.model.failRoute(msg, out)
}

// pickRun draws a pending run, any of them, as handlers keep no order among each other.
func (m *machine) pickRun(t *rapid.T) (*modelRun, int64) {
	p := pick(t, m.model.pending(), "run")
	m.touched = p.message
	return p.run, m.fixture.run(p.message.id, p.run.handler).ID
}

func (m *machine) endRun(t *rapid.T) {
	run, id := m.pickRun(t)
	out := message.Outcome{State: message.RunSent, Attempts: 1}
	switch rapid.IntRange(0, 4).Draw(t, "outcome") {
	case 0:
		out = filtered(drawReason(t))
	case 1:
		out = failed(drawReason(t))
		out.HoldAfter = drawHoldAfter(t)
	default:
		if len(run.to) == 0 {
			break
		}
		for range rapid.IntRange(0, 5).Draw(t, "sends") {
			out.Sends = append(out.Sends, message.Send{To: pick(t, run.to, "to"), Body: []byte(drawBody(t, "send"))})
		}
	}
	out.Printed = drawPrinted(t)
	m.must(m.s.EndRun(m.ctx(), id, out))
	m.model.endRun(m.touched, run, out)
}

// stray sends outside of the plan, which changes nothing.
func (m *machine) stray(t *rapid.T) {
	run, id := m.pickRun(t)
	out := sent()
	for _, to := range slices.Concat(run.to, []string{"nowhere"}) {
		out.Sends = append(out.Sends, message.Send{To: to, Body: []byte("stray")})
	}
	m.wantRefused("a send outside of the plan", m.s.EndRun(m.ctx(), id, out))
}

// keepOrder changes whether an outbound keeps order, or says it again.
func (m *machine) keepOrder(t *rapid.T) {
	m.touched = nil
	outbound, keep := pick(t, outbounds(), "outbound"), rapid.Bool().Draw(t, "keep")
	m.must(m.s.KeepOrder(m.ctx(), outbound, keep))
	m.model.none[outbound] = !keep
}

// extend has a handler have other outbounds. Where they are those of the last time, nothing was planned for others since.
func (m *machine) extend(t *rapid.T) {
	m.touched = nil
	p := store.Plan{Handler: pick(t, handlers(), "handler"),
		To: rapid.SliceOfNDistinct(rapid.SampledFrom(outbounds()), 0, 3, rapid.ID[string]).Draw(t, "to")}
	m.must(m.s.Extend(m.ctx(), p))
	m.model.extend(p)
}

// pickReady draws a delivery that can be sent, with its id in the store: a head, or, where no order is kept, any.
func (m *machine) pickReady(t *rapid.T) (*modelDelivery, int64) {
	outbound := pick(t, outbounds(), "outbound")
	if m.model.none[outbound] {
		d := pick(t, m.model.ready(outbound, math.MaxInt), "delivery")
		m.touched = d.message
		return d, m.timeline(d.message.id).Deliveries[d.number-1].ID
	}
	var list []int
	heads := m.model.heads(outbound, 1)
	for i, d := range heads {
		if d.state == message.Ready {
			list = append(list, i)
		}
	}
	i := pick(t, list, "head")
	m.touched = heads[i].message
	got := m.heads(outbound, 1)
	if len(got) != len(heads) {
		t.Fatalf("outbound %s has %d heads, want %d", outbound, len(got), len(heads))
	}
	return heads[i], got[i].ID
}

func (m *machine) deliver(t *rapid.T) {
	d, id := m.pickReady(t)
	m.must(m.s.Delivered(m.ctx(), id, message.Receipt{Text: "AA"}))
	d.delivered()
}

func (m *machine) retry(t *rapid.T) {
	d, id := m.pickReady(t)
	reason, rejected := drawReason(t), rapid.Bool().Draw(t, "rejected")
	var next time.Time
	if rapid.Bool().Draw(t, "waits") {
		next = time.UnixMicro(1)
	}
	m.must(m.s.Retry(m.ctx(), id, reason, rejected, next))
	d.retry(reason, rejected, !next.IsZero())
}

func (m *machine) bury(t *rapid.T) {
	d, id := m.pickReady(t)
	reason := drawReason(t)
	m.must(m.s.Bury(m.ctx(), id, reason))
	d.bury(reason)
}

func (m *machine) park(t *rapid.T) {
	d, id := m.pickReady(t)
	reason := drawReason(t)
	m.must(m.s.Park(m.ctx(), id, reason))
	d.retry(reason, true, false)
	name := message.Delivery{Message: d.message.id, Number: d.number}.Name()
	m.model.hold(outboundTarget(d.outbound, d.message.inbound), strings.TrimSpace("delivery "+name+": "+reason))
}

// release releases anything, held or not.
func (m *machine) release(t *rapid.T) {
	m.touched = nil
	of := outboundTarget(pick(t, outbounds(), "outbound"), pick(t, append(inbounds(), ""), "lane"))
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		of = handlerTarget(pick(t, handlers(), "handler"))
	case 1:
		of = message.Target{Kind: message.KindInbound, Name: pick(t, inbounds(), "inbound")}
	}
	bury := rapid.Bool().Draw(t, "bury")
	released, err := m.s.Release(m.ctx(), of, bury)
	m.must(err)
	before := len(m.model.held)
	lanes := m.model.release(of)
	equal(m.fixture, "released", len(released), before-len(m.model.held))
	for _, lane := range lanes {
		if bury {
			m.model.giveUp(lane)
		}
	}
}

func (m *machine) replay(t *rapid.T) {
	m.touched = pick(t, m.model.messages, "message")
	n := message.Names{Inbounds: map[string]string{}, Handlers: map[string]message.Plan{}, Outbounds: map[string]string{}}
	for _, name := range inbounds() {
		n.Inbounds[name] = name
	}
	for _, r := range m.touched.runs { // with what it might name before, so that the model need not know two plans
		n.Handlers[r.handler] = store.Plan{Handler: r.handler, To: r.to}
	}
	for _, name := range outbounds() {
		n.Outbounds[name] = name
	}
	_, err := m.s.Replay(m.ctx(), m.touched.id, n)
	if m.model.replay(m.touched) {
		m.must(err)
	} else {
		m.wantErr(err, store.ErrNothingFailed)
	}
}

// stale ends something a second time, which changes nothing.
func (m *machine) stale(t *rapid.T) {
	var list []*modelMessage
	for _, msg := range m.model.messages {
		if msg.disposition != message.Received {
			list = append(list, msg)
		}
	}
	m.touched = pick(t, list, "message")
	m.wantErr(m.s.Route(m.ctx(), m.touched.id, nil, message.Outcome{State: message.RunSent}), store.ErrStale)
	tl := m.timeline(m.touched.id)
	for _, r := range tl.Runs {
		if r.State != message.RunPending {
			m.wantErr(m.s.EndRun(m.ctx(), r.ID, filtered("again")), store.ErrStale)
		}
	}
	for _, d := range tl.Deliveries {
		if d.State != message.Reserved && d.State != message.Ready {
			m.wantErr(m.s.Bury(m.ctx(), d.ID, "again"), store.ErrStale)
		}
	}
}

func (m *machine) reopen(*rapid.T) {
	s, err := m.s.(Reopener).Reopen()
	m.must(err)
	m.s = s
}

// check compares everything that the engine sees, and the message that the last action touched as a whole.
func (m *machine) check(*rapid.T) {
	for _, out := range outbounds() {
		m.checkHeads(out, 1)
		m.checkHeads(out, 3)
		m.checkReady(out, 2)
		m.checkReady(out, 100)
	}
	m.checkQueues()
	m.checkDispositions()
	m.checkHolds()
	m.checkDeadLetters()
	if m.touched != nil {
		m.checkTimeline(m.touched)
		m.checkContains(m.touched)
	}
}

func (m *machine) checkHeads(outbound string, most int) {
	var got, want string
	for _, d := range m.heads(outbound, most) {
		got += fmt.Sprintf("[%s %s %s %s %d/%d]", d.Name(), d.State, brief(d.Body), d.Handler, d.Attempts, d.Rejected)
	}
	for _, d := range m.model.heads(outbound, most) {
		name := message.Delivery{Message: d.message.id, Number: d.number}.Name()
		want += fmt.Sprintf("[%s %s %s %s %d/%d]", name, d.state, brief(d.body), d.run.handler, d.attempts, d.rejected)
	}
	equal(m.fixture, "heads of "+outbound, got, want)
}

func (m *machine) checkReady(outbound string, limit int) {
	want := []string{}
	for _, d := range m.model.ready(outbound, limit) {
		name := nth(d.message.id, d.number)
		if d.attempts > 0 {
			name += "*"
		}
		want = append(want, name)
	}
	m.wantReady(outbound, limit, want...)
}

func (m *machine) checkQueues() {
	for _, inbound := range inbounds() {
		var want message.ID
		for _, msg := range m.model.messages {
			if msg.inbound == inbound && msg.disposition == message.Received {
				want = msg.id
				break
			}
		}
		next, err := m.s.NextReceived(m.ctx(), inbound)
		m.must(err)
		var got message.ID
		if next != nil {
			got = next.ID
		}
		equal(m.fixture, "next of "+inbound, got, want)
	}
	for _, h := range handlers() {
		for _, most := range []int{1, 4, 1000} {
			var want, got string
			left := most
			for _, p := range m.model.pending() {
				if p.run.handler == h && left > 0 {
					left--
					want += fmt.Sprintf("[%d %q %s]", p.message.id, p.run.to, brief(p.message.body))
				}
			}
			for _, p := range m.nextRuns(h, most) {
				got += fmt.Sprintf("[%d %q %s]", p.Run.Message, p.Run.To, brief(p.On.Body))
			}
			equal(m.fixture, "next of "+h, got, want)
		}
	}
}

// checkMade: what a receive tells of the runs that it made is what the store has, and where one is said to come behind another,
// nothing stands between them.
func (m *machine) checkMade(runs []message.Pending) {
	for _, made := range runs {
		all := m.nextRuns(made.Run.Handler, 1000)
		i := slices.IndexFunc(all, func(p message.Pending) bool { return p.Run.ID == made.Run.ID })
		if i < 0 {
			m.Fatalf("run %d is not pending", made.Run.ID)
		}
		if made.Before != 0 && i > 0 && all[i-1].Run.ID > made.Before { // that one may have ended, before an older one
			m.Fatalf("run %d is said to come behind %d, and %d stands between them", made.Run.ID, made.Before, all[i-1].Run.ID)
		}
		made.Before, made.On.Body = 0, all[i].On.Body
		equal(m.fixture, "run as it was made", fmt.Sprintf("%+v", made), fmt.Sprintf("%+v", all[i]))
	}
}

func (m *machine) checkDispositions() {
	counts, err := m.s.Counts(m.ctx())
	m.must(err)
	unfinished, err := m.s.Unfinished(m.ctx())
	m.must(err)
	list, err := m.s.Messages(m.ctx(), store.Query{Limit: len(m.model.messages) + 1})
	m.must(err)
	want := map[message.Disposition]int64{}
	var gotList, wantList string
	for i, msg := range m.model.messages {
		want[msg.disposition]++
		wantList += fmt.Sprintf("%d %s %s;", msg.id, msg.disposition, msg.reason)
		if i < len(list) {
			got := list[len(list)-1-i]
			gotList += fmt.Sprintf("%d %s %s;", got.ID, got.Disposition, got.Reason)
		}
	}
	equal(m.fixture, "messages", gotList, wantList)
	equal(m.fixture, "number of messages", len(list), len(m.model.messages))
	for _, d := range message.Dispositions() {
		equal(m.fixture, "count of "+string(d), counts[d], want[d])
	}
	equal(m.fixture, "unfinished", unfinished, want[message.Received]+want[message.Routed])
}

func (m *machine) checkHolds() {
	list, err := m.s.Holds(m.ctx())
	m.must(err)
	got := map[message.Target]string{}
	for _, h := range list {
		got[h.Target] = h.Reason
	}
	equal(m.fixture, "holds", fmt.Sprint(got), fmt.Sprint(m.model.held))
}

func (m *machine) checkDeadLetters() {
	list, err := m.s.DeadLetters(m.ctx(), store.DeadLetters{Limit: len(m.model.messages) + 1})
	m.must(err)
	var got, want []string
	for _, d := range list {
		got = append(got, fmt.Sprint(d.Message, d.Kind, d.Name, d.Delivery, d.Reason))
	}
	for _, msg := range m.model.messages {
		for _, r := range msg.runs {
			kind, name := message.KindHandler, r.handler
			if r.handler == "" {
				kind, name = message.KindInbound, msg.inbound
			}
			if r.state == message.RunError && !r.replayed && !r.dismissed {
				want = append(want, fmt.Sprint(msg.id, kind, name, "", r.reason))
			}
		}
		for _, d := range msg.deliveries {
			if d.state == message.Dead && !d.replayed && !d.dismissed {
				want = append(want, fmt.Sprint(msg.id, message.KindOutbound, d.outbound, message.Delivery{Message: msg.id, Number: d.number}.Name(), d.reason))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	equal(m.fixture, "dead letters", fmt.Sprint(got), fmt.Sprint(want))
}

func (m *machine) checkTimeline(msg *modelMessage) {
	tl := m.timeline(msg.id)
	got, want := brief(tl.Message.Body), brief(msg.body)
	for _, r := range tl.Runs {
		got += fmt.Sprintf("[%q %s %s %v %t %t]", r.Handler, r.State, r.Outcome.Reason, r.Outcome.Printed, !r.Replayed.IsZero(), !r.Dismissed.At.IsZero())
	}
	for _, r := range msg.runs {
		want += fmt.Sprintf("[%q %s %s %v %t %t]", r.handler, r.state, r.reason, r.printed, r.replayed, r.dismissed)
	}
	for _, d := range tl.Deliveries {
		got += fmt.Sprintf("[%d %s>%s %s %s %s %t %t]", d.Number, d.Handler, d.Outbound, d.State, brief(d.Body), d.Reason, !d.Replayed.IsZero(),
			!d.Dismissed.At.IsZero())
	}
	for _, d := range msg.deliveries {
		want += fmt.Sprintf("[%d %s>%s %s %s %s %t %t]", d.number, d.run.handler, d.outbound, d.state, brief(d.body), d.reason, d.replayed, d.dismissed)
	}
	equal(m.fixture, fmt.Sprintf("timeline of message %d", msg.id), got, want)
}
