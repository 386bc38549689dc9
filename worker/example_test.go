package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"coppice.dev/coppice/wire"
	"coppice.dev/coppice/worker"
)

// admit drops what names no patient, and sends the rest on with the facility in it.
func admit(ctx context.Context, m *worker.Message) (worker.Result, error) {
	h, err := m.HL7() // lossless: bytes that are not touched stay as they were
	if err != nil {
		return worker.Nothing, err
	}
	if h.Get("PID-3.1") == "" {
		return worker.Drop("no MRN"), nil
	}
	facility, err := worker.Setting[string](m, "facility")
	if err != nil {
		return worker.Nothing, err
	}
	if err := h.Set("PV1-3.4", facility); err != nil {
		return worker.Nothing, err
	}
	m.Tag("mrn", h.Get("PID-3.1"))
	return worker.Sends(worker.Send("emr", h.Bytes()), worker.Send("archive", m.Body)), nil
}

// A worker's main is one call: worker.Main(worker.Handler("admit", admit)). Serve is the same over any pipe, for tests.
func Example() {
	engine, answers := new(bytes.Buffer), new(bytes.Buffer)
	say := func(m wire.Message) {
		frame, err := wire.Encode(m, wire.DefaultCaps())
		if err == nil {
			_, err = frame.WriteTo(engine)
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	say(&wire.Boot{Offers: []wire.Offer{{Phase: wire.PhaseHandle, Name: "admit"}}, Settings: map[string]any{"facility": "MERCY"}})
	say(&wire.Request{Binding: wire.Binding{ID: strings.Repeat("5f", 16), Phase: wire.PhaseHandle, Name: "admit"},
		Message: 1, Attempt: 1, Timeout: 5000, Body: []byte("MSH|^~\\&|\rPID|1||4711\rPV1|1")})

	if err := worker.Serve(context.Background(), engine, answers, worker.Handler("admit", admit)); err != nil {
		fmt.Println(err)
	}

	for {
		body, err := wire.ReadFrame(answers, wire.DefaultCaps())
		if err == io.EOF {
			return
		}
		answer, err := wire.Decode(body, wire.Worker, wire.DefaultCaps())
		if err != nil {
			fmt.Println(err)
			return
		}
		if result, ok := answer.(*wire.Result); ok {
			for _, s := range result.Sends {
				fmt.Printf("%s: %q %v\n", s.To, s.Body, result.Tags)
			}
			continue
		}
		fmt.Println(answer.Type())
	}
	// Output:
	// ready
	// emr: "MSH|^~\\&|\rPID|1||4711\rPV1|1||^^^MERCY" map[mrn:4711]
	// archive: "MSH|^~\\&|\rPID|1||4711\rPV1|1" map[mrn:4711]
}
