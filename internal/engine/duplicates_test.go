package engine

import (
	"fmt"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/message"
)

// TestDuplicates: what a sender sends again, since it lost its answer, is acknowledged and not delivered again; a resubmission is.
// So is it by an inbound that was renamed, which closes the connection on which the answer was to come. Red without onceOf in
// sink.Receive, with the duplicate's error told to the connection, and without Was.
func TestDuplicates(t *testing.T) {
	needPython(t)
	receiver := newEMR(t, nil)
	toml := strings.Replace(fmt.Sprintf(stampTOML, "127.0.0.1:0", receiver.Addr()), "[handler", "duplicates = { within = \"1h\" }\n[handler", 1)
	dir := folder(t, toml)
	write(t, dir+"/stamp.py", stamp("0"))
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	for _, n := range []int{1, 1, 2, 1} {
		exchange(t, client, numbered(n))
	}
	if counts := e.quiet(t, 2); counts[message.Processed] != 2 || len(receiver.got()) != 2 {
		t.Errorf("%v, %d deliveries", counts, len(receiver.got()))
	}
	if tl, err := e.Store().Timeline(t.Context(), 1); err != nil || tl.Message.Duplicates != 2 {
		t.Errorf("message 1: %+v, %v", tl.Message, err)
	}
	if id, err := e.Resubmit(t.Context(), 1, nil); err != nil || id != 3 {
		t.Errorf("resubmitted as %d, %v", id, err)
	}
	if counts := e.quiet(t, 3); counts[message.Processed] != 3 || len(receiver.got()) != 3 {
		t.Errorf("after the resubmission: %v, %d deliveries", counts, len(receiver.got()))
	}
	write(t, dir+"/coppice.toml", strings.Replace(toml, "[inbound.feed]", "[inbound.admissions]\nwas = [\"feed\"]", 1))
	e.reload(t)
	exchange(t, dial(t, e.Addr("admissions")), numbered(2))
	if counts := e.quiet(t, 3); counts[message.Processed] != 3 {
		t.Errorf("after the rename: %v", counts)
	}
}
