package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

// TestBatchIsSplit: the messages of a batch go through the pipeline as messages of their own, in their order, and are
// duplicates of what came before each by itself; none of them can be resubmitted as a batch; a file that was committed and not moved when the engine died is not taken
// again. Red without Split in the inbounds, without onceOf in sink.ReceiveAll, without batchOf in resubmit, and with the file's
// source left out.
func TestBatchIsSplit(t *testing.T) {
	needPython(t)
	receiver := newEMR(t, nil)
	toml := "version = 1\n" +
		"[inbound.feed]\nmllp = { listen = \"127.0.0.1:0\" }\nsplit = \"hl7\"\nduplicates = { within = \"1h\" }\nhandlers = [\"numbered\"]\n" +
		"[inbound.files]\nfile = { dir = \"in\", poll = \"10ms\", stable = \"0s\" }\nsplit = \"hl7\"\nhandlers = [\"numbered\"]\n" +
		"[handler.numbered]\nrun = \"feed.py:numbered\"\nto = [\"emr\"]\n" +
		fmt.Sprintf("[outbound.emr]\nmllp = { connect = %q }\n", receiver.Addr())
	dir := folder(t, toml)
	in := filepath.Join(dir, "in")
	if err := os.Mkdir(in, 0o700); err != nil {
		t.Fatal(err)
	}
	batch := func(control string, ids ...string) []byte {
		text := "BHS|^~\\&|A|F|||2026||||" + control + "\r"
		for _, id := range ids {
			text += string(troubleMessage(id))
		}
		return fmt.Appendf(nil, "%sBTS|%d\r", text, len(ids))
	}
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	for _, b := range [][]byte{batch("b1", "1", "2", "3"), batch("b1", "1", "2", "3"), batch("b2", "3", "4")} {
		if ack, err := client.Exchange(t.Context(), b); err != nil || ack.Code != hl7.AA {
			t.Fatalf("%+v, %v", ack, err)
		}
	}
	e.quiet(t, 4)
	var want string
	for n, body := range receiver.got() {
		want = fmt.Sprintf("%sZID|%d\r", troubleMessage(fmt.Sprint(n+1)), n+1)
		if string(body) != want {
			t.Errorf("delivery %d is %q, want %q", n, body, want)
		}
	}
	if n := len(receiver.got()); n != 4 {
		t.Errorf("%d deliveries, want 4", n)
	}

	for want, body := range map[string][]byte{
		"the body is a batch, which inbound \"feed\" takes apart into 2": batch("b3", "1", "2"),
		"inbound \"feed\" would turn it away: malformed batch: ":         []byte("BHS|^~\\&|A\rBTS|1\r"),
	} {
		if _, err := e.Resubmit(t.Context(), 1, body); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("resubmit: %v, want %s", err, want)
		}
	}

	name, at := filepath.Join(in, "x.hl7"), time.Now().Add(-time.Hour).Truncate(time.Second)
	put := func() {
		t.Helper()
		if err := os.WriteFile(name+".tmp", batch("b3", "5", "6"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name+".tmp", at, at); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".tmp", name); err != nil {
			t.Fatal(err)
		}
	}
	moved := func(n int) {
		t.Helper()
		for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if done, _ := os.ReadDir(filepath.Join(in, "done")); len(done) == n {
				return
			}
			if time.Now().After(late) {
				t.Fatalf("file %d is not taken", n)
			}
		}
	}
	put()
	moved(1)
	e.quiet(t, 6)
	e.end(t)
	put() // as if the engine had died before the move
	e = serve(t, dir, Options{})
	moved(2)
	if counts := e.quiet(t, 6); counts[message.Processed] != 6 {
		t.Errorf("after the start: %v", counts)
	}
	if done, _ := os.ReadDir(filepath.Join(in, "done")); !strings.HasSuffix(done[1].Name(), ".0000000005") {
		t.Errorf("moved to %q, want the number of the first of its messages in the name", done[1].Name())
	}
}
