package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/cases"
	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/sandbox"
)

// dryRun opens one whose temporary folders lie where the test sees them, and fails the test if one is left at its end.
func dryRun(t *testing.T, dir string) *DryRun {
	t.Helper()
	tmp := t.TempDir()
	for _, name := range []string{"TMPDIR", "TMP"} {
		t.Setenv(name, tmp)
	}
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	d, err := OpenDryRun(t.Context(), cfg, sandbox.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if left, err := filepath.Glob(filepath.Join(tmp, "*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return d
}

// TestDryRunAgrees: what a dry run says of a message is what an engine on the same folder has made of it, for every way in which a
// handler can end; the two run at the same time. Red with Derive's case of a filtered run taken out, and with the store opened in
// OpenDryRun.
func TestDryRunAgrees(t *testing.T) {
	needPython(t)
	receiver := newEMR(t, nil)
	dir := folder(t, fmt.Sprintf(troubleTOML, receiver.Addr()))
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	whats := []string{"fine", "prints", "raises", "nonsense", "unknown destination", "sleeps", "exits", "writes to the wire", "drops",
		"nothing", "route raises", "route nowhere", "route unknown"}
	for _, what := range whats {
		exchange(t, client, troubleMessage(what))
	}
	e.quiet(t, int64(len(whats)))
	before, _ := os.ReadDir(filepath.Join(dir, "var"))
	d := dryRun(t, dir)
	for i, what := range whats {
		stored, err := e.Store().Timeline(t.Context(), message.ID(i+1))
		if err != nil {
			t.Fatal(err)
		}
		want, ended := cases.FromStore(stored)
		if !ended || want.Disposition != stored.Message.Disposition {
			t.Errorf("%s: ended %v as %s, and stored as %s", what, ended, want.Disposition, stored.Message.Disposition)
		}
		m := message.Message{ID: message.ID(i + 1), Inbound: "feed", Received: stored.Message.Received, Body: stored.Message.Body}
		trial, err := d.Run(t.Context(), m)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if diff := cases.Compare(want, cases.Of(m, trial.Runs, trial.Tags)); len(diff) > 0 {
			t.Errorf("%s: %+v", what, diff)
		}
	}
	if got := len(receiver.got()); got != 2 {
		t.Errorf("the EMR got %d messages: a dry run sends nothing", got)
	}
	if after, _ := os.ReadDir(filepath.Join(dir, "var")); len(before) == 0 || len(after) != len(before) {
		t.Errorf("in the engine's folder there were %d entries, now %d", len(before), len(after))
	}
}

// TestDryRunRefuses: what the inbound would not take is not tried. Red without admit's looks at the header and at the size.
func TestDryRunRefuses(t *testing.T) {
	needPython(t)
	dir := folder(t, strings.Replace(fmt.Sprintf(troubleTOML, "127.0.0.1:1"), `listen = "127.0.0.1:0"`, `listen = "127.0.0.1:0", max_message = "200B"`, 1))
	d := dryRun(t, dir)
	for body, want := range map[string]string{
		"{}": "inbound feed would turn it away: no HL7 header segment: ",
		string(bytes.Repeat(troubleMessage("fine"), 5)): "inbound feed would turn it away: message is over the limit of 200 bytes",
	} {
		_, err := d.Run(t.Context(), message.Message{ID: 1, Inbound: "feed", Body: []byte(body)})
		if refused, ok := errors.AsType[*RefusedError](err); !ok || !strings.HasPrefix(refused.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := d.Run(t.Context(), message.Message{ID: 1, Inbound: "nobody", Body: troubleMessage("fine")}); err == nil {
		t.Error("an inbound that is not there takes messages")
	}
}

// TestDryRunHeld: a worker that cannot boot is told of as check does, and no message is to blame. Red without held: the error
// has no place.
func TestDryRunHeld(t *testing.T) {
	needPython(t)
	dir := folder(t, fmt.Sprintf(troubleTOML, "127.0.0.1:1"))
	write(t, filepath.Join(dir, "broken.py"), "import no_such_module\n")
	toml, _ := os.ReadFile(filepath.Join(dir, "coppice.toml"))
	write(t, filepath.Join(dir, "coppice.toml"), strings.Replace(string(toml), "feed.py:trouble", "broken.py:trouble", 1))
	d := dryRun(t, dir)
	for range 2 { // the second one meets the breaker
		_, err := d.Run(t.Context(), message.Message{ID: 1, Inbound: "feed", Body: troubleMessage("fine")})
		held, ok := errors.AsType[*HeldError](err)
		if !ok || held.What != "handler trouble" || held.Checked.Error.Line != 8 ||
			!strings.Contains(held.Error(), "no_such_module") || !strings.Contains(held.Traceback, `"broken.py", line 1`) {
			t.Errorf("%v, %+v", err, held)
		}
	}
}

// TestDryRunEnds: a dry run that is called off returns at once, and leaves nothing. Red with a context of its own for Try.
func TestDryRunEnds(t *testing.T) {
	needPython(t)
	dir := folder(t, strings.Replace(fmt.Sprintf(troubleTOML, "127.0.0.1:1"), "500ms", "50s", 1))
	d := dryRun(t, dir)
	why := errors.New("called off")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := d.Run(ctx, message.Message{ID: 1, Inbound: "feed", Body: troubleMessage("sleeps")})
		ended <- err
	}()
	eventually(t, func() bool { return members(t, d) > 1 }) // the router's worker and the handler's
	cancel(why)
	select {
	case err := <-ended:
		if err != why {
			t.Errorf("%v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	if err := d.Close(); err != nil || members(t, d) > 0 {
		t.Errorf("%v, and %d processes are left", err, members(t, d))
	}
}

// members counts the pools with living workers.
func members(t *testing.T, d *DryRun) (n int) {
	t.Helper()
	for _, p := range d.workers.pools {
		if m, err := p.Members(); err == nil && len(m) > 0 {
			n++
		}
	}
	return n
}
