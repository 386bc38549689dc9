package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/message"
)

// What the memory store answers besides success.
var (
	errStale = errors.New("already ended")
	errFull  = errors.New("disk full")
	errDead  = errors.New("the process was killed")
)

// memory is the durable queue as package store documents it, in the plainest way. It outlives the pipelines that tests
// start and crash on it. What a caller may not do it refuses and also remembers in breaches, so that no test passes with it.
type memory struct {
	latency func(call string) time.Duration // how long a call takes; nil: no time
	// fault is asked before each call: a call with an error does not happen, unless unknown says that it does.
	fault func(call string) (err error, unknown bool)

	mu         sync.Mutex
	messages   []*memMessage // by id, from 1
	runs       []*memRun     // by id, from 1; also the order in which they were planned
	deliveries []*memDelivery
	place      int
	held       []message.Hold
	streaks    map[message.Target]int
	none       map[string]bool // the outbounds that keep no order
	breaches   []string
	heads      int // that were returned so far
}

type memMessage struct {
	message.Message
	runs       []*memRun
	deliveries []*memDelivery
}

type memRun struct {
	message.Run
	msg *memMessage
}

type memDelivery struct {
	message.Delivery
	msg        *memMessage
	run        *memRun
	place, sub int
	sentBody   []byte
}

func (s *memory) breach(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	s.breaches = append(s.breaches, err.Error())
	return err
}

// do makes one call: it takes its time, happens or not, and answers.
func (s *memory) do(ctx context.Context, call string, act func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.latency != nil {
		t := time.NewTimer(s.latency(call))
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := ctx.Value(processKey{}).(*process); ok && p.killed.Load() {
		return errDead
	}
	if s.fault != nil {
		if err, unknown := s.fault(call); err != nil {
			if unknown {
				if err := act(); err != nil {
					return err
				}
			}
			return err
		}
	}
	return act()
}

func (s *memory) ReceiveRouted(ctx context.Context, in message.Incoming, plans []message.Plan) (id message.ID, runs []message.Pending, err error) {
	err = s.do(ctx, "Receive", func() error {
		waits := slices.ContainsFunc(s.messages, func(m *memMessage) bool { return m.Inbound == in.Inbound && m.Disposition == message.Received }) ||
			slices.ContainsFunc(s.held, func(h message.Hold) bool { return h.Target == routing(in.Inbound) })
		id = message.ID(len(s.messages) + 1)
		m := &memMessage{Message: message.Message{ID: id, Inbound: in.Inbound, Type: in.Type, Disposition: message.Received,
			Body: slices.Clone(in.Body)}}
		s.messages = append(s.messages, m)
		if len(plans) == 0 || waits {
			return nil
		}
		before := map[string]int64{}
		for _, r := range s.runs {
			before[r.Handler] = r.ID
		}
		made := len(s.runs)
		err := s.route(m, plans, message.Outcome{State: message.RunSent})
		for _, r := range s.runs[made:] {
			p := message.Pending{Run: r.Run, On: m.Message, Before: before[r.Handler]}
			p.On.Body = nil
			runs = append(runs, p)
		}
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	if s.latency != nil {
		time.Sleep(s.latency("Received")) // it is committed, and its receiver does not know yet
	}
	return id, runs, nil
}

func (s *memory) ReceiveAll(ctx context.Context, all []message.Incoming) (taken []message.Taken, err error) {
	err = s.do(ctx, "ReceiveAll", func() error {
		for _, in := range all {
			id := message.ID(len(s.messages) + 1)
			s.messages = append(s.messages, &memMessage{Message: message.Message{ID: id, Inbound: in.Inbound, Type: in.Type,
				Disposition: message.Received, Body: slices.Clone(in.Body)}})
			taken = append(taken, message.Taken{ID: id})
		}
		return nil
	})
	return taken, err
}

func (s *memory) NextReceived(ctx context.Context, inbound string) (next *message.Message, err error) {
	err = s.do(ctx, "NextReceived", func() error {
		for _, m := range s.messages {
			if m.Inbound == inbound && m.Disposition == message.Received {
				found := m.Message
				next = &found
				return nil
			}
		}
		return nil
	})
	return next, err
}

func (s *memory) Route(ctx context.Context, id message.ID, plans []message.Plan, run message.Outcome) error {
	return s.do(ctx, "Route", func() error { return s.route(s.messages[id-1], plans, run) })
}

func (s *memory) route(m *memMessage, plans []message.Plan, run message.Outcome) error {
	switch {
	case m.Disposition != message.Received:
		return errStale
	case run.State != message.RunSent:
		return s.breach("route message %d with a run that is %q", m.ID, run.State)
	}
	var seen []string
	for _, p := range plans {
		if slices.Contains(seen, p.Handler) {
			return s.breach("handler %q is planned twice", p.Handler)
		}
		seen = append(seen, p.Handler)
	}
	m.Disposition = message.Routed
	if run.Attempts > 0 {
		s.addRun(m, message.Run{State: run.State, Outcome: run})
	}
	for _, p := range plans {
		r := s.addRun(m, message.Run{Handler: p.Handler, To: slices.Clone(p.To), State: message.RunPending})
		for _, to := range p.To {
			s.place++
			s.addDelivery(&memDelivery{msg: m, run: r, place: s.place, Delivery: message.Delivery{Outbound: to, State: message.Reserved}})
		}
	}
	s.derive(m)
	return nil
}

func (s *memory) Extend(ctx context.Context, p message.Plan) error {
	return s.do(ctx, "Extend", func() error {
		for _, r := range s.runs {
			if r.Handler != p.Handler || r.State != message.RunPending {
				continue
			}
			place := 0
			for _, d := range r.msg.deliveries {
				if d.run == r && place == 0 {
					place = d.place
				}
			}
			for _, to := range p.To {
				if slices.Contains(r.To, to) {
					continue
				}
				if place == 0 {
					s.place++
					place = s.place
				}
				r.To = append(r.To, to)
				s.addDelivery(&memDelivery{msg: r.msg, run: r, place: place, Delivery: message.Delivery{Outbound: to, State: message.Reserved}})
			}
		}
		return nil
	})
}

func (s *memory) addRun(m *memMessage, run message.Run) *memRun {
	r := &memRun{Run: run, msg: m}
	s.runs = append(s.runs, r)
	r.ID, r.Message = int64(len(s.runs)), m.ID
	m.runs = append(m.runs, r)
	return r
}

func (s *memory) addDelivery(d *memDelivery) {
	s.deliveries = append(s.deliveries, d)
	d.msg.deliveries = append(d.msg.deliveries, d)
	d.ID, d.Message, d.Number = int64(len(s.deliveries)), d.msg.ID, len(d.msg.deliveries)
	d.Handler, d.Inbound = d.run.Handler, d.msg.Inbound
}

func (s *memory) FailRoute(ctx context.Context, id message.ID, run message.Outcome) error {
	return s.do(ctx, "FailRoute", func() error {
		m := s.messages[id-1]
		switch {
		case m.Disposition != message.Received:
			return errStale
		case run.State != message.RunError || run.Fault == nil:
			return s.breach("fail route of message %d with a run that is %q, fault %v", id, run.State, run.Fault)
		}
		s.addRun(m, message.Run{State: run.State, Outcome: run})
		s.streak(routing(m.Inbound), run)
		s.derive(m)
		return nil
	})
}

func (s *memory) NextRuns(ctx context.Context, handler string, most int, bytes int64) (next []message.Pending, err error) {
	err = s.do(ctx, "NextRuns", func() error {
		for _, r := range s.runs {
			if r.Handler != handler || r.State != message.RunPending {
				continue
			}
			if bytes -= sizeOf(&r.msg.Message, nil); len(next) == most || len(next) > 0 && bytes < 0 {
				return nil
			}
			next = append(next, message.Pending{Run: r.Run, On: r.msg.Message})
		}
		return nil
	})
	return next, err
}

func (s *memory) NextSize(ctx context.Context, of message.Target) (n int64, err error) {
	if of.Kind == message.KindInbound {
		m, err := s.NextReceived(ctx, of.Name)
		return sizeOf(m, nil), err
	}
	next, err := s.NextRuns(ctx, of.Name, 1, 0)
	for i := range next {
		n = sizeOf(&next[i].On, nil)
	}
	return n, err
}

func (s *memory) DeliverySize(ctx context.Context, delivery int64) (int64, error) {
	body, err := s.DeliveryBody(ctx, delivery)
	return int64(len(body)), err
}

func (s *memory) EndRun(ctx context.Context, run int64, out message.Outcome) error {
	return s.do(ctx, "EndRun", func() error {
		r := s.runs[run-1]
		switch {
		case r.State != message.RunPending:
			return errStale
		case (out.State == message.RunSent) != (len(out.Sends) > 0),
			(out.State == message.RunError) != (out.Fault != nil),
			out.State != message.RunSent && out.State != message.RunFiltered && out.State != message.RunError:
			return s.breach("run %d ends as %q with %d sends and fault %v", run, out.State, len(out.Sends), out.Fault)
		}
		for _, send := range out.Sends {
			if !slices.Contains(r.To, send.To) {
				return s.breach("run %d sends to %q, which its plan does not have", run, send.To)
			}
		}
		r.State, r.Outcome = out.State, out
		s.streak(running(r.Handler), out)
		s.fill(r, out.Sends)
		s.derive(r.msg)
		return nil
	})
}

func (s *memory) fill(r *memRun, sends []message.Send) {
	first, count := map[string]*memDelivery{}, map[string]int{}
	for _, d := range r.msg.deliveries {
		if d.run == r {
			first[d.Outbound] = d
		}
	}
	for _, send := range sends {
		d := first[send.To]
		if n := count[send.To]; n > 0 {
			d = &memDelivery{msg: r.msg, run: r, place: d.place, sub: n, Delivery: message.Delivery{Outbound: send.To}}
			s.addDelivery(d)
		}
		count[send.To]++
		d.State, d.sentBody = message.Ready, slices.Clone(send.Body)
	}
	for to, d := range first {
		if count[to] == 0 {
			d.State = message.Closed
		}
	}
}

func (s *memory) Heads(ctx context.Context, outbound string, most int) (heads []message.Delivery, err error) {
	err = s.do(ctx, "Heads", func() error {
		if s.none[outbound] {
			return s.breach("asked for the heads of outbound %q, which keeps no order", outbound)
		}
		var list []*memDelivery
		for _, d := range s.deliveries {
			if d.Outbound == outbound && d.open() {
				list = append(list, d)
			}
		}
		slices.SortFunc(list, (*memDelivery).before)
		lanes := map[string]int{}
		for _, d := range list {
			if lanes[d.Inbound]++; lanes[d.Inbound] <= most {
				heads = append(heads, d.Delivery)
			}
		}
		s.heads += len(heads)
		return nil
	})
	return heads, err
}

func (s *memory) KeepOrder(ctx context.Context, outbound string, keep bool) error {
	return s.do(ctx, "KeepOrder", func() error {
		if s.none == nil {
			s.none = map[string]bool{}
		}
		s.none[outbound] = !keep
		return nil
	})
}

func (s *memory) Ready(ctx context.Context, outbound string, limit int) (ready []message.Delivery, err error) {
	err = s.do(ctx, "Ready", func() error {
		if !s.none[outbound] {
			return s.breach("asked for what is ready at outbound %q, which keeps order", outbound)
		}
		var list []*memDelivery
		for _, d := range s.deliveries {
			if d.Outbound == outbound && d.State == message.Ready {
				list = append(list, d)
			}
		}
		slices.SortFunc(list, (*memDelivery).before)
		lanes := map[string]int{}
		for _, d := range list {
			if lanes[d.Inbound]++; lanes[d.Inbound] <= limit {
				ready = append(ready, d.Delivery)
			}
		}
		return nil
	})
	return ready, err
}

func (s *memory) StillReady(ctx context.Context, delivery int64) (attempts int, ready bool, err error) {
	err = s.do(ctx, "StillReady", func() error {
		d := s.deliveries[delivery-1]
		attempts, ready = d.Attempts, d.State == message.Ready
		return nil
	})
	return attempts, ready, err
}

// DeliveryBody may be asked for what is sent next, and for nothing else.
func (s *memory) DeliveryBody(ctx context.Context, delivery int64) (body []byte, err error) {
	err = s.do(ctx, "DeliveryBody", func() error {
		d := s.deliveries[delivery-1]
		if d.State != message.Ready {
			return s.breach("body of delivery %d, which is %s", delivery, d.State)
		}
		body = slices.Clone(d.sentBody)
		return nil
	})
	return body, err
}

func (d *memDelivery) before(other *memDelivery) int {
	return cmp.Or(cmp.Compare(d.place, other.place), cmp.Compare(d.sub, other.sub))
}

func (d *memDelivery) open() bool { return d.State == message.Reserved || d.State == message.Ready }

// end changes a delivery that is ready and, where order is kept, the head of its lane; no other may be sent.
func (s *memory) end(ctx context.Context, call string, delivery int64, change func(*memDelivery)) error {
	return s.do(ctx, call, func() error {
		d := s.deliveries[delivery-1]
		if !d.open() {
			return errStale
		}
		for _, other := range s.deliveries {
			if other.Outbound == d.Outbound && other.Inbound == d.Inbound && other.open() && other.before(d) < 0 && !s.none[d.Outbound] {
				return s.breach("%s of delivery %d, which is not the head of its lane", call, delivery)
			}
		}
		if d.State != message.Ready {
			return s.breach("%s of delivery %d, which is %s", call, delivery, d.State)
		}
		d.Attempts++
		change(d)
		s.derive(d.msg)
		return nil
	})
}

func (s *memory) Delivered(ctx context.Context, delivery int64, r message.Receipt) error {
	return s.end(ctx, "Delivered", delivery, func(d *memDelivery) { d.State, d.Receipt = message.Delivered, r.Text })
}

func (s *memory) Retry(ctx context.Context, delivery int64, reason string, rejected bool, next time.Time) error {
	return s.end(ctx, "Retry", delivery, func(d *memDelivery) {
		if rejected {
			d.Rejected++
		}
		d.Reason, d.NextTry = reason, next.Round(0) // what is stored has no monotonic clock
	})
}

func (s *memory) Bury(ctx context.Context, delivery int64, reason string) error {
	return s.end(ctx, "Bury", delivery, func(d *memDelivery) {
		d.Rejected++
		d.State, d.Reason = message.Dead, reason
	})
}

func (s *memory) Park(ctx context.Context, delivery int64, reason string) error {
	return s.end(ctx, "Park", delivery, func(d *memDelivery) {
		d.Rejected++
		d.Reason, d.NextTry = reason, time.Time{}
		lane := delivering(d.Outbound)
		lane.Inbound = d.Inbound
		s.hold(message.Hold{Target: lane, Reason: "delivery " + d.Name() + ": " + reason})
	})
}

func (s *memory) hold(h message.Hold) {
	if !slices.ContainsFunc(s.held, func(other message.Hold) bool { return other.Target == h.Target }) {
		s.held = append(s.held, h)
	}
}

func (s *memory) streak(of message.Target, out message.Outcome) {
	if s.streaks == nil {
		s.streaks = map[message.Target]int{}
	}
	if out.State != message.RunError {
		s.streaks[of] = 0
		return
	}
	s.streaks[of]++
	if out.HoldAfter > 0 && s.streaks[of] >= out.HoldAfter {
		s.hold(message.Hold{Target: of, Reason: out.Reason})
	}
}

func (s *memory) Holds(ctx context.Context) (list []message.Hold, err error) {
	err = s.do(ctx, "Holds", func() error {
		list = slices.Clone(s.held)
		return nil
	})
	return list, err
}

func (s *memory) Hold(ctx context.Context, h message.Hold) error {
	return s.do(ctx, "Hold", func() error {
		s.hold(h)
		return nil
	})
}

func (s *memory) Release(ctx context.Context, t message.Target, bury bool) (released []message.Hold, err error) {
	err = s.do(ctx, "Release", func() error {
		var rest []message.Hold
		for _, h := range s.held {
			if h.Kind != t.Kind || h.Name != t.Name || t.Inbound != "" && h.Inbound != t.Inbound {
				rest = append(rest, h)
				continue
			}
			released = append(released, h)
			if bury && h.Inbound != "" {
				s.buryHead(h.Target)
			}
		}
		s.held = rest
		delete(s.streaks, t)
		return nil
	})
	return released, err
}

func (s *memory) buryHead(lane message.Target) {
	if s.none[lane.Name] {
		s.giveUp(lane)
		return
	}
	var head *memDelivery
	for _, d := range s.deliveries {
		if d.Outbound == lane.Name && d.Inbound == lane.Inbound && d.open() && (head == nil || d.before(head) < 0) {
			head = d
		}
	}
	if head != nil && head.State == message.Ready && head.Attempts > 0 {
		head.State = message.Dead
		s.derive(head.msg)
	}
}

// giveUp buries all that is parked in a lane that keeps no order, or else the oldest that has been tried.
func (s *memory) giveUp(lane message.Target) {
	var parked, tried []*memDelivery
	for _, d := range s.deliveries {
		if d.Outbound != lane.Name || d.Inbound != lane.Inbound || d.State != message.Ready || d.Attempts == 0 {
			continue
		}
		if tried = append(tried, d); d.NextTry.IsZero() {
			parked = append(parked, d)
		}
	}
	slices.SortFunc(tried, (*memDelivery).before)
	if len(parked) == 0 && len(tried) > 0 {
		parked = tried[:1]
	}
	for _, d := range parked {
		d.State = message.Dead
		s.derive(d.msg)
	}
}

// Replay makes a new run of each that failed and a new delivery of each that is dead.
func (s *memory) Replay(ctx context.Context, id message.ID, names message.Names) (done message.Replay, err error) {
	err = s.do(ctx, "Replay", func() error {
		m := s.messages[id-1]
		m.Disposition, m.Reason = message.Routed, ""
		for _, r := range slices.Clone(m.runs) {
			if r.State != message.RunError || !r.Replayed.IsZero() {
				continue
			}
			r.Replayed = time.Now()
			if r.Handler == "" {
				m.Disposition, done.Router = message.Received, true
				return nil
			}
			p := names.Handlers[r.Handler]
			done.Handlers = append(done.Handlers, p.Handler)
			again := s.addRun(m, message.Run{Handler: p.Handler, To: p.To, State: message.RunPending})
			for _, to := range p.To {
				s.place++
				s.addDelivery(&memDelivery{msg: m, run: again, place: s.place, Delivery: message.Delivery{Outbound: to, State: message.Reserved}})
			}
		}
		for _, d := range slices.Clone(m.deliveries) {
			if d.State != message.Dead || !d.Replayed.IsZero() {
				continue
			}
			d.Replayed = time.Now()
			s.place++
			again := &memDelivery{msg: m, run: d.run, place: s.place, sentBody: d.sentBody,
				Delivery: message.Delivery{Outbound: d.Outbound, State: message.Ready}}
			s.addDelivery(again)
			done.Sends = append(done.Sends, again.Delivery)
		}
		return nil
	})
	return done, err
}

// derive is the rule of dispositions. A final one may be derived once.
func (s *memory) derive(m *memMessage) {
	if m.Disposition.Final() {
		s.breach("message %d is %s and changes again", m.ID, m.Disposition)
	}
	var failed, filtered []string
	planned, done := false, false
	for _, r := range m.runs {
		planned = planned || r.Handler != ""
		switch r.State {
		case message.RunPending:
			return
		case message.RunError:
			if r.Replayed.IsZero() {
				failed = append(failed, r.Outcome.Reason)
			}
		case message.RunFiltered:
			filtered = append(filtered, r.Outcome.Reason)
		}
	}
	for _, d := range m.deliveries {
		switch {
		case d.open():
			return
		case d.State == message.Dead:
			if d.Replayed.IsZero() {
				failed = append(failed, d.Reason)
			}
		case d.State == message.Delivered:
			done = true
		}
	}
	switch {
	case len(failed) > 0:
		m.Disposition, m.Reason = message.Error, failed[0]
	case done:
		m.Disposition = message.Processed
	case planned:
		m.Disposition, m.Reason = message.Filtered, filtered[0]
	default:
		m.Disposition = message.Unrouted
	}
}

// unfinished counts the messages without a final disposition.
func (s *memory) unfinished() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if !m.Disposition.Final() {
			n++
		}
	}
	return n
}

// process is one life of an engine, carried by the context of its calls.
type process struct{ killed atomic.Bool }

type processKey struct{}

// kill ends it at once: nothing that it asks of a store happens any more.
func (p *process) kill(s *memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.killed.Store(true)
}
