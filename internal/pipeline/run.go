package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"coppice.dev/coppice/internal/message"
)

// routeAll routes the messages of one inbound, oldest first, until ctx ends.
func (p *Pipeline) routeAll(ctx, hard context.Context, in *Inbound) {
	var spent tries
	p.loop(ctx, routing(in.Name), func() (time.Duration, error) {
		if held, err := p.held(ctx, routing(in.Name)); held || err != nil {
			return -1, err
		}
		h := hand{room: p.cfg.Room}
		defer h.has(0)
		if err := h.reach(ctx, func() (int64, error) { return p.cfg.Store.NextSize(ctx, routing(in.Name)) }); err != nil {
			return 0, err
		}
		m, err := p.cfg.Store.NextReceived(ctx, in.Name)
		h.has(sizeOf(m, nil))
		if m == nil || err != nil {
			return -1, err
		}
		return 0, p.route(hard, in, m, &spent)
	})
}

// route has one message routed and commits the choice. An error holds the inbound.
func (p *Pipeline) route(ctx context.Context, in *Inbound, m *message.Message, spent *tries) error {
	chosen, out, err := p.choose(ctx, in, m, spent)
	if err != nil {
		return err
	}
	commit, cancel := committing(ctx)
	defer cancel()
	if out.State == message.RunError {
		out.HoldAfter = in.HoldAfter
		err := p.cfg.Store.FailRoute(commit, m.ID, out)
		p.holds.changed() // perhaps
		if err != nil {
			return fmt.Errorf("record failed route of message %d: %w", m.ID, err)
		}
		p.ran(m.ID, "", out)
		return nil
	}
	plans, names := p.plan(chosen)
	err = p.cfg.Store.Route(commit, m.ID, plans, out)
	for _, name := range names {
		p.kick(running(name)) // after an error, too: the commit may have happened
	}
	if err != nil {
		return err
	}
	if f := p.cfg.Observer.Routed; f != nil {
		f(m.ID, in.Name, names)
	}
	return nil
}

// choose has a message's handlers named; out says how the router's run ended, if there is a router.
func (p *Pipeline) choose(ctx context.Context, in *Inbound, m *message.Message, spent *tries) (chosen []string, out message.Outcome, err error) {
	chosen, out = in.Handlers, message.Outcome{State: message.RunSent}
	if in.Router != nil {
		var answer Answer
		if answer, out, err = p.attempts(ctx, in.Router, in.Attempts, m, spent); err != nil {
			return nil, out, err
		}
		chosen = answer.Handlers
	}
	if out.State != message.RunError {
		if unknown := p.unknownHandler(chosen); unknown != "" {
			out = refused(out, "route", fmt.Sprintf("router named %q, which is not a handler; there are %s", unknown, p.handlerNames()))
		}
	}
	return chosen, out, nil
}

// plan makes the plans for the handlers that were chosen. A router that names one twice means it once.
func (p *Pipeline) plan(chosen []string) (plans []message.Plan, names []string) {
	for _, name := range chosen {
		if !slices.Contains(names, name) {
			names = append(names, name)
			plans = append(plans, message.Plan{Handler: name, To: p.handlers[name].To})
		}
	}
	return plans, names
}

func (p *Pipeline) unknownHandler(names []string) string {
	for _, name := range names {
		if p.handlers[name] == nil {
			return name
		}
	}
	return ""
}

func (p *Pipeline) handlerNames() string {
	var names []string
	for _, h := range p.cfg.Handlers {
		names = append(names, h.Name)
	}
	return strings.Join(names, ", ")
}

// How far ahead is read, where more waits: the pages of the store that hold what is next have to be read once for all of it, and
// not again after each commit. It is a bound of what is in memory, in number and bytes of bodies.
const (
	mostAhead  = 16
	bytesAhead = 64 << 10
)

// handling is the loop of a handler.
type handling struct {
	*Pipeline
	h     *Handler
	spent tries
	next  []message.Pending // the one at hand, and what is known to come behind it
	last  int64             // the run that ended last; 0: not known
	asked time.Time         // when the store was
	have  hand              // for the bodies
}

// handleAll runs one handler on its messages, in planned order, until ctx ends.
func (p *Pipeline) handleAll(ctx, hard context.Context, h *Handler) {
	s := &handling{Pipeline: p, h: h, have: hand{room: p.cfg.Room}}
	defer s.keep(nil)
	defer p.offers[h.Name].refuse()
	p.loop(ctx, running(h.Name), func() (time.Duration, error) {
		wait, err := s.step(ctx, hard)
		if wait != 0 || err != nil { // who waits has nothing in hand
			s.keep(nil)
		}
		if err != nil { // the store knows better
			s.last = 0
			s.offers[h.Name].refuse()
		}
		return wait, err
	})
}

// step has one message handled. If there is none, it returns how long until there is one (negative: not until a kick). An error
// holds the handler.
func (s *handling) step(ctx, hard context.Context) (time.Duration, error) {
	if held, err := s.held(ctx, running(s.h.Name)); held || err != nil {
		s.offers[s.h.Name].refuse()
		return -1, err
	}
	if len(s.next) == 0 {
		if err := s.look(ctx); len(s.next) == 0 || err != nil {
			return -1, err
		}
	}
	err := s.handle(hard, &s.next[0])
	s.next[0] = message.Pending{} // its body would stay in memory as long as those behind it
	s.keep(s.next[1:])
	return 0, err
}

// look gets what is next, if there is something: what is offered, or else what the store has.
func (s *handling) look(ctx context.Context) error {
	next, ask := s.offers[s.h.Name].behind(s.last)
	s.keep(next)
	if len(next) > 0 || !ask && time.Since(s.asked) < lookAgain {
		return nil
	}
	s.asked = time.Now()
	err := s.read(ctx)
	if len(s.next) > 0 {
		s.offers[s.h.Name].look() // for what is behind them
	}
	return err
}

// read reads what is next from the store. Where there is room for one body alone nothing is read ahead.
func (s *handling) read(ctx context.Context) error {
	if err := s.have.reach(ctx, func() (int64, error) { return s.cfg.Store.NextSize(ctx, running(s.h.Name)) }); err != nil {
		return err
	}
	most := 1
	if s.have.ample() {
		most = mostAhead
	}
	next, err := s.cfg.Store.NextRuns(ctx, s.h.Name, most, bytesAhead)
	s.keep(next)
	return err
}

// keep has the given runs in hand, and no others.
func (s *handling) keep(next []message.Pending) {
	s.next = next
	s.have.has(s.inHand(nil))
}

// inHand is how large the bodies are that the loop has, with what the run at hand sends.
func (s *handling) inHand(sends []message.Send) int64 {
	n := sizeOf(nil, sends)
	for i := range s.next {
		n += sizeOf(&s.next[i].On, nil)
	}
	return n
}

// handle has one message handled and commits the outcome. An error holds the handler.
func (s *handling) handle(ctx context.Context, p *message.Pending) error {
	run, m := &p.Run, &p.On
	out, err := s.work(ctx, s.h, run.To, m, &s.spent)
	if err != nil {
		return err
	}
	s.have.has(s.inHand(out.Sends))
	commit, cancel := committingMuch(ctx, out.Sends)
	defer cancel()
	if out.State == message.RunError {
		out.HoldAfter = s.h.HoldAfter
		defer s.holds.changed() // perhaps
	}
	err = s.cfg.Store.EndRun(commit, run.ID, out)
	for _, to := range run.To {
		// A place that was closed may set the lane free, too; and after an error the commit may have happened.
		s.kick(delivering(to))
	}
	if err != nil {
		return fmt.Errorf("record outcome of message %d: %w", m.ID, err)
	}
	s.last = run.ID
	s.ran(m.ID, s.h.Name, out)
	return nil
}

// work has a handler work on a message, and says what is to be committed. to are the outbounds for which it has places.
func (p *Pipeline) work(ctx context.Context, h *Handler, to []string, m *message.Message, spent *tries) (message.Outcome, error) {
	answer, out, err := p.attempts(ctx, h.Runner, h.Attempts, m, spent)
	if err == nil && out.State != message.RunError {
		out = outcome(out, answer, to, h)
	}
	return out, err
}

func (p *Pipeline) ran(id message.ID, handler string, out message.Outcome) {
	if out.State == message.RunError {
		p.cfg.Log.Warn("part failed", "message", id, "handler", handler, "kind", out.Fault.Kind, "type", out.Fault.Type)
	}
	if f := p.cfg.Observer.Ran; f != nil {
		f(id, handler, out)
	}
}

// outcome makes of a handler's answer what is committed. A destination outside of those for which places were reserved
// fails the whole answer: what one handler sends goes out all or none.
func outcome(out message.Outcome, a Answer, to []string, h *Handler) message.Outcome {
	for _, s := range a.Sends {
		if !slices.Contains(to, s.To) {
			return refused(out, "destination", fmt.Sprintf("handler %q sent to %q, which is not among its to = [%s]",
				h.Name, s.To, quoted(to)))
		}
	}
	switch {
	case a.Dropped:
		out.State, out.Reason = message.RunFiltered, a.Drop
	case len(a.Sends) == 0:
		out.State, out.Reason = message.RunFiltered, "handler sent nothing"
	default:
		out.State, out.Sends = message.RunSent, a.Sends
	}
	return out
}

func refused(out message.Outcome, kind, text string) message.Outcome {
	out.State, out.Reason = message.RunError, text
	out.Fault = &message.Fault{Kind: kind, Text: text}
	return out
}

func quoted(names []string) string {
	var q []string
	for _, n := range names {
		q = append(q, fmt.Sprintf("%q", n))
	}
	return strings.Join(q, ", ")
}

// tries counts the workers that the message at hand has cost. It outlives a hold: a message that kills each worker, where
// the next one does not start at once, must end as poison and not hold its lane for ever.
type tries struct {
	message message.ID
	workers int
}

// attempts runs a function on one message, on fresh workers if it has to be, and says how that ended: with an answer, or
// with an outcome that is ERROR. An error is nobody's fault, and nothing has been decided of the message.
func (p *Pipeline) attempts(ctx context.Context, r Runner, most int, m *message.Message, spent *tries) (Answer, message.Outcome, error) {
	if spent.message != m.ID {
		*spent = tries{message: m.ID}
	}
	for {
		n := spent.workers + 1
		answer, err := r.Run(ctx, m, n)
		if err == nil {
			*spent = tries{}
			return answer, message.Outcome{State: message.RunSent, Attempts: n, Code: answer.Code, Took: answer.Took, Tags: answer.Tags,
				Printed: answer.Printed}, nil
		}
		var failure *Failure
		if !errors.As(err, &failure) || failure.Blame == Nobody {
			return Answer{}, message.Outcome{}, err
		}
		if ctx.Err() != nil { // it may have failed because it was cut short
			return Answer{}, message.Outcome{}, context.Cause(ctx)
		}
		if failure.Blame == TheWorker && n < most {
			spent.workers = n
			p.cfg.Log.Warn("attempt failed", "message", m.ID, "attempt", n, "kind", failure.Fault.Kind)
			continue
		}
		*spent = tries{}
		reason := failure.Error()
		if failure.Blame == TheWorker {
			reason = fmt.Sprintf("poison: %s (%s)", failure.Error(), count(n, "attempt"))
		}
		return Answer{}, message.Outcome{State: message.RunError, Reason: reason, Fault: &failure.Fault, Attempts: n,
			Code: failure.Code, Took: failure.Took, Printed: failure.Printed}, nil
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
