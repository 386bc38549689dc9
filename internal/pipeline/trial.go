package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"coppice.dev/coppice/internal/message"
)

// Trial is what Run would make of one message if every delivery were taken.
type Trial struct {
	Disposition message.Disposition
	Reason      string
	Runs        []message.Run // the router's first, with no Handler, if there is one; then the handlers', as they were planned
	Tags        map[string]string
}

// Try routes one message and has its handlers work on it as Run does, one after the other, and commits and sends nothing: the
// pipeline needs no store and no senders. An error is nobody's fault: Run would hold the message. It is not called while Run
// runs, and not from two goroutines at once.
func (p *Pipeline) Try(ctx context.Context, m *message.Message) (Trial, error) {
	i := slices.IndexFunc(p.cfg.Inbounds, func(in Inbound) bool { return in.Name == m.Inbound })
	if i < 0 {
		return Trial{}, fmt.Errorf("there is no inbound %q", m.Inbound)
	}
	in := &p.cfg.Inbounds[i]
	t := Trial{Tags: map[string]string{}}
	chosen, out, err := p.choose(ctx, in, m, &tries{})
	if err != nil {
		return Trial{}, fmt.Errorf("router of inbound %s: %w", in.Name, err)
	}
	if in.Router != nil || out.State == message.RunError {
		t.add(message.Run{Message: m.ID, State: out.State, Outcome: out})
	}
	if out.State != message.RunError {
		plans, _ := p.plan(chosen)
		for _, plan := range plans {
			out, err := p.work(ctx, p.handlers[plan.Handler], plan.To, m, &tries{})
			if err != nil {
				return Trial{}, fmt.Errorf("handler %s: %w", plan.Handler, err)
			}
			t.add(message.Run{Message: m.ID, Handler: plan.Handler, To: plan.To, State: out.State, Outcome: out})
		}
	}
	t.Disposition, t.Reason = Derive(t.Runs)
	return t, nil
}

func (t *Trial) add(r message.Run) {
	t.Runs = append(t.Runs, r)
	maps.Copy(t.Tags, r.Outcome.Tags)
}

// Derive is the disposition of a message whose runs have all ended, once every delivery has been taken: what a store derives of
// it. The reason is that of the first run that failed, or else of the first that filtered.
func Derive(runs []message.Run) (message.Disposition, string) {
	d, reason := message.Unrouted, ""
	for _, r := range runs {
		switch {
		case r.State == message.RunError:
			return message.Error, r.Outcome.Reason
		case r.Handler == "":
		case r.State == message.RunSent:
			d, reason = message.Processed, ""
		case d == message.Unrouted:
			d, reason = message.Filtered, r.Outcome.Reason
		}
	}
	return d, reason
}
