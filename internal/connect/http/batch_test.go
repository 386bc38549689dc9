package http

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/message"
)

// The messages of a batch are received together and answered with their ids. One that is malformed is refused and recorded; one
// that could not be committed is to come again. Red without Split in receive, and with ErrBatch taken for a failed commit.
func TestBatchIsSplit(t *testing.T) {
	sink := connecttest.NewSink()
	in := serve(t, InboundConfig{Split: true}, sink)
	message1, message2 := "MSH|^~\\&|||||||ADT^A01|1|P|2.5\r", "MSH|^~\\&|||||||ADT^A01|2|P|2.5\r"
	for _, tc := range []struct {
		body   string
		status int
		answer string
		kept   int
	}{
		{"FHS|^~\\&\rBHS|^~\\&\r" + message1 + message2 + "BTS|2\rFTS|1\r", 200, `{"ids":[1,2]}`, 2},
		{"BHS|^~\\&\r" + message1 + "BTS|1\r", 200, `{"id":3}`, 3},
		{"BHS|^~\\&\r" + message1 + message2, 400, `no BTS`, 3},
		{message1, 200, `{"id":4}`, 4},
		{"{}", 200, `{"id":5}`, 5},
		{"BHS|^~\\&\r" + message1 + "MSH|^~\\&|||||||ADT^A01|busy|P|2.5\rBTS|2\r", 503, "not committed", 5},
	} {
		sink.OnReceive(func(_ context.Context, in message.Incoming) error {
			if in.ControlID == "busy" {
				return connect.ErrBusy
			}
			return nil
		})
		answer, text := ask(t, in.Addr(), fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(tc.body), tc.body))
		if answer.StatusCode != tc.status || !strings.Contains(text, tc.answer) || len(sink.Messages()) != tc.kept {
			t.Errorf("%q: %s %q, and %d are kept; want %d %q and %d", tc.body, answer.Status, text, len(sink.Messages()), tc.status, tc.answer, tc.kept)
		}
	}
	if got := sink.Refusals(); len(got) != 1 {
		t.Errorf("refusals %+v", got)
	}
}
