package main

import (
	"context"
	"errors"
	"fmt"

	_ "github.com/redpanda-data/benthos/v4/public/components/io"
	"github.com/redpanda-data/benthos/v4/public/service"
)

// benthos has Benthos' processor "subprocess" speak with the bare Go child, which understands its codec.
func (f *far) benthos() (echo, func() error, error) {
	spec := service.NewConfigSpec().Field(service.NewProcessorField("processor"))
	config, err := spec.ParseYAML(fmt.Sprintf(`
processor:
  subprocess:
    name: %q
    args: [bare]
    max_buffer: %d
    codec_send: length_prefixed_uint32_be
    codec_recv: length_prefixed_uint32_be
`, f.child, 4<<20), nil)
	if err != nil {
		return nil, nil, err
	}
	p, err := config.FieldProcessor("processor")
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lifetime)
	end := func() error {
		defer cancel()
		return p.Close(ctx)
	}
	return func(body []byte) ([]byte, error) {
		batch, err := p.Process(ctx, service.NewMessage(body))
		switch {
		case err != nil:
			return nil, err
		case len(batch) != 1:
			return nil, errors.New("not one message came back")
		case batch[0].GetError() != nil:
			return nil, batch[0].GetError()
		}
		return batch[0].AsBytes()
	}, end, nil
}
