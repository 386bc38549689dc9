package main

import (
	"context"
	"errors"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/message"
)

// served is a system that takes messages, at one address for each lane.
type served struct {
	addrs []string
	ends  []func() error
}

// onEnd adds what end does, the last one first.
func (s *served) onEnd(f func() error) { s.ends = append(s.ends, f) }

func (s *served) end() error {
	var errs []error
	for i := len(s.ends) - 1; i >= 0; i-- {
		errs = append(errs, s.ends[i]())
	}
	return errors.Join(errs...)
}

// listen adds an inbound for one more lane.
func (s *served) listen(name string, sink oneByOne) error {
	in, err := mllp.NewInbound(mllp.InboundConfig{Name: name, Listen: "127.0.0.1:0"}, sinkOf{sink})
	if err != nil {
		return err
	}
	if err := in.Listen(context.Background()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- in.Serve(ctx) }()
	s.onEnd(func() error {
		cancel()
		return <-ended
	})
	s.addrs = append(s.addrs, in.Addr())
	return nil
}

// oneByOne is what these systems need of a connect.Sink: no inbound here takes batches apart.
type oneByOne interface {
	Receive(ctx context.Context, in message.Incoming) (message.ID, error)
	Refuse(ctx context.Context, r message.Refusal) error
	Seen(ctx context.Context, src message.Source) (message.ID, bool, error)
}

// sinkOf is the whole of one.
type sinkOf struct{ oneByOne }

func (sinkOf) ReceiveAll(context.Context, []message.Incoming) ([]message.ID, error) {
	return nil, errors.ErrUnsupported
}
