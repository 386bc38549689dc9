package mllp

import (
	"context"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

const batchHead = "BHS|^~\\&|APP|FAC|||2026||||77\r"

// The messages of a batch are received together, and the batch is answered once, after the commit. One that is malformed is
// refused and recorded, and nothing of it taken; one that could not be committed gets no answer. Red without Split in receive,
// and with ErrBatch taken for a failed commit.
func TestBatchIsSplit(t *testing.T) {
	sink := connecttest.NewSink()
	in, _ := serve(t, InboundConfig{Split: true}, sink)
	peer := connectRaw(t, in.Addr())
	peer.send(frame([]byte(batchHead + string(adt("1")) + string(adt("2")) + "BTS|2\r")))
	peer.wantAck(hl7.AA, "77")
	wantBodies(t, sink, adt("1"), adt("2"))
	if got := sink.Messages(); got[0].ControlID != "1" || got[1].Type != "ADT^A01" || got[1].Peer == "" {
		t.Errorf("messages %+v", got)
	}
	peer.send(frame([]byte(batchHead + string(adt("3")) + "BTS|2\r")))
	peer.wantAck(hl7.AR, "77")
	if got := sink.Refusals(); len(got) != 1 || !strings.Contains(got[0].Reason, "BTS-1") {
		t.Errorf("refusals %+v", got)
	}
	peer.send(frame(adt("4")))
	peer.wantAck(hl7.AA, "4")
	sink.OnReceive(func(_ context.Context, in message.Incoming) error {
		if in.ControlID == "6" {
			return connect.ErrBusy
		}
		return nil
	})
	peer.send(frame([]byte(batchHead + string(adt("5")) + string(adt("6")) + "BTS|2\r")))
	peer.wantClosed()
	wantBodies(t, sink, adt("1"), adt("2"), adt("4"))
}
