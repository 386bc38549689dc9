package main

import (
	"context"
	"errors"
	"fmt"

	_ "github.com/redpanda-data/benthos/v4/public/components/io"
	"github.com/redpanda-data/benthos/v4/public/service"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

// openBenthos is a stream of Benthos for each lane: input, its processor "subprocess" with a bare Go child that echoes, output.
// Nothing is durable: a message is acknowledged once the stream's input has taken it.
func (f *far) openBenthos(b *bed, _ string) (_ *served, err error) {
	s := &served{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.end())
		}
	}()
	for lane := range b.lanes {
		out, err := mllp.NewOutbound(mllp.OutboundConfig{Name: "benthos", Connect: b.receivers[lane].Addr()})
		if err != nil {
			return nil, err
		}
		s.onEnd(out.Close)
		end := &benthosEnds{taken: make(chan []byte), out: out, done: b.done}
		stop, err := end.stream(f.bare)
		if err != nil {
			return nil, err
		}
		s.onEnd(stop)
		if err := s.listen("benthos", end); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// benthosEnds are both ends of a stream, and the sink of its inbound.
type benthosEnds struct {
	taken chan []byte
	out   *mllp.Outbound
	done  func(control string)
}

// stream starts it, and returns what stops it.
func (e *benthosEnds) stream(child string) (stop func() error, err error) {
	env := service.NewEnvironment()
	err = env.RegisterInput("lane", service.NewConfigSpec(), func(*service.ParsedConfig, *service.Resources) (service.Input, error) {
		return benthosInput{e}, nil
	})
	if err != nil {
		return nil, err
	}
	err = env.RegisterOutput("lane", service.NewConfigSpec(), func(*service.ParsedConfig, *service.Resources) (service.Output, int, error) {
		return benthosOutput{e}, 1, nil
	})
	if err != nil {
		return nil, err
	}
	b := env.NewStreamBuilder()
	b.DisableLinting()
	err = b.SetYAML(fmt.Sprintf(`
input: { lane: {} }
pipeline:
  threads: 1
  processors:
    - subprocess: { name: %q, args: [bare], max_buffer: %d, codec_send: length_prefixed_uint32_be, codec_recv: length_prefixed_uint32_be }
output: { lane: {} }
logger: { level: ERROR }
`, child, 4<<20))
	if err != nil {
		return nil, err
	}
	stream, err := b.Build()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- stream.Run(ctx) }()
	return func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}, nil
}

func (e *benthosEnds) Receive(ctx context.Context, in message.Incoming) (message.ID, error) {
	select {
	case e.taken <- append([]byte(nil), in.Body...): // the body is its caller's again after this
		return 1, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (e *benthosEnds) Refuse(_ context.Context, r message.Refusal) error { return errors.New(r.Reason) }

func (e *benthosEnds) Seen(context.Context, message.Source) (message.ID, bool, error) {
	return 0, false, nil
}

type benthosInput struct{ *benthosEnds }

func (e benthosInput) Connect(context.Context) error { return nil }
func (e benthosInput) Close(context.Context) error   { return nil }

func (e benthosInput) Read(ctx context.Context) (*service.Message, service.AckFunc, error) {
	select {
	case body := <-e.taken:
		return service.NewMessage(body), func(context.Context, error) error { return nil }, nil
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

type benthosOutput struct{ *benthosEnds }

func (e benthosOutput) Connect(context.Context) error { return nil }
func (e benthosOutput) Close(context.Context) error   { return nil }

func (e benthosOutput) Write(ctx context.Context, m *service.Message) error {
	if err := m.GetError(); err != nil {
		return err // of the processor
	}
	body, err := m.AsBytes()
	if err != nil {
		return err
	}
	h, err := hl7.ParseHeader(body)
	if err != nil {
		return err
	}
	if _, err := e.out.Send(ctx, message.Delivery{Control: h.ControlID, Body: body}); err != nil {
		return err
	}
	e.done(h.ControlID)
	return nil
}
