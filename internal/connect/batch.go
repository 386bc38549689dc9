package connect

import (
	"context"

	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

// Receive hands what an inbound has read to the sink, with type and control id of its header, if it has one, and returns the
// ids: one, or with split those of a batch's messages. These are received all or none. The error is hl7.ErrBatch for a batch that
// cannot be taken apart, of which the sink was told nothing: the inbound refuses it.
//
// The source of a file is recorded with its first message: the whole of it is committed with that one.
func Receive(ctx context.Context, s Sink, in message.Incoming, split bool) ([]message.ID, error) {
	var bodies [][]byte
	if split {
		var err error
		if bodies, err = hl7.Apart(in.Body); err != nil {
			return nil, err
		}
	}
	if bodies == nil {
		h, _ := hl7.ParseHeader(in.Body) // empty without one
		in.Type, in.ControlID = h.Type, h.ControlID
		id, err := s.Receive(ctx, in)
		return []message.ID{id}, err
	}
	all := make([]message.Incoming, len(bodies))
	for i, body := range bodies {
		h, _ := hl7.ParseHeader(body) // which every message of a batch has
		all[i] = in
		all[i].Body, all[i].Type, all[i].ControlID = body, h.Type, h.ControlID
		if i > 0 {
			all[i].File = nil
		}
	}
	return s.ReceiveAll(ctx, all)
}
