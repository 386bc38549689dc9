package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// stamp is a handler's code that stamps what it passes on.
func stamp(version string) string {
	return fmt.Sprintf("from coppice_worker import handler, Send\n@handler\ndef stamp(msg, ctx):\n    return Send(%q, msg.body + b\"ZZV|%s\\r\")\n", "emr", version)
}

const stampTOML = `
version = 1
[inbound.feed]
mllp = { listen = %q }
handlers = ["stamp"]
[handler.stamp]
run = "stamp.py:stamp"
to = ["emr"]
[outbound.emr]
mllp = { connect = %q }
`

func (s *served) reload(t *testing.T) control.Reloaded {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := s.Reload(ctx)
	if err != nil {
		t.Fatalf("reload: %v", err)
	}
	return r
}

// refused checks that a reload fails for a reason, and that the engine goes on as it was.
func (s *served) refused(t *testing.T, reason string) {
	t.Helper()
	before := s.now.Load().cfg
	_, err := s.Reload(t.Context())
	if err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("got error %v, want one with %q", err, reason)
	}
	if s.now.Load().cfg != before {
		t.Errorf("%s: the engine did not go on as it was", reason)
	}
}

func numbered(n int) []byte {
	return fmt.Appendf(nil, "MSH|^~\\&|A|B|C|D|20260101||ADT^A01|%d|P|2.5\r", n)
}

// TestReloadUnderLoad: code is changed while messages stream in over one connection. The connection stays, every message is
// delivered once and in order, and the code's version never goes back. Guards seen red: with the inbounds not taken over in
// connect the connection breaks; with sink not asking the next pipeline, a message is not taken.
func TestReloadUnderLoad(t *testing.T) {
	needPython(t)
	receiver := newEMR(t, nil)
	dir := folder(t, fmt.Sprintf(stampTOML, "127.0.0.1:0", receiver.Addr()))
	write(t, filepath.Join(dir, "stamp.py"), stamp("0"))
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	const messages, reloads = 400, 4
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := range messages {
			exchange(t, client, numbered(n))
		}
	}()
	for v := range reloads {
		write(t, filepath.Join(dir, "stamp.py"), stamp(fmt.Sprint(v+1)))
		if r := e.reload(t); len(r.Changed) != 1 || !strings.HasPrefix(r.Changed[0], "code: ") {
			t.Errorf("changed: %q", r.Changed)
		}
	}
	<-ended
	exchange(t, client, numbered(messages))
	e.quiet(t, messages+1)
	last := "0"
	got := receiver.got()
	for n, body := range got {
		head, version, _ := strings.Cut(string(body), "ZZV|")
		version = strings.TrimSpace(version)
		if head != string(numbered(n)) || version < last {
			t.Fatalf("delivery %d is %q, after version %s", n, body, last)
		}
		last = version
	}
	if len(got) != messages+1 || last != fmt.Sprint(reloads) {
		t.Errorf("%d deliveries, the last by version %s", len(got), last)
	}
}

// TestReloadDuringALoop: a handler that loops for ever does not hold up the deploy of its mended code, nor a stop, for longer than
// the grace; its message is handled by the new code and has not failed.
func TestReloadDuringALoop(t *testing.T) {
	needPython(t)
	receiver := newEMR(t, nil)
	dir := folder(t, strings.Replace(fmt.Sprintf(stampTOML, "127.0.0.1:0", receiver.Addr()), "to = [", "deadline = \"1h\"\nto = [", 1))
	mark := filepath.Join(t.TempDir(), "looping")
	loop := fmt.Sprintf("from coppice_worker import handler\n@handler\ndef stamp(msg, ctx):\n    open(%q, \"w\")\n    while True: pass\n", mark)
	looping := func() {
		t.Helper()
		eventually(t, func() bool { return os.Remove(mark) == nil })
	}
	write(t, filepath.Join(dir, "stamp.py"), loop)
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	exchange(t, client, numbered(0))
	exchange(t, client, numbered(1))
	looping()
	write(t, filepath.Join(dir, "stamp.py"), stamp("mended"))
	began := time.Now()
	e.reload(t)
	t.Logf("reloaded in %v", time.Since(began))
	if counts := e.quiet(t, 2); counts[message.Processed] != 2 || len(receiver.got()) != 2 {
		t.Errorf("%v, %d deliveries", counts, len(receiver.got()))
	}
	write(t, filepath.Join(dir, "stamp.py"), loop)
	e.reload(t)
	exchange(t, client, numbered(2))
	looping()
	began = time.Now()
	e.end(t)
	t.Logf("stopped in %v", time.Since(began))
}

// TestReloadRefused: whatever is wrong with the new configuration, the old one goes on, with its sockets.
func TestReloadRefused(t *testing.T) {
	needPython(t)
	receiver := newEMR(t, nil)
	toml := fmt.Sprintf(stampTOML, "127.0.0.1:0", receiver.Addr())
	dir := folder(t, toml)
	write(t, filepath.Join(dir, "stamp.py"), stamp("0"))
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := e.Hold(t.Context(), message.Target{Kind: message.KindOutbound, Name: "emr"}, "so that work waits"); err != nil {
		t.Fatal(err)
	}
	exchange(t, client, numbered(0))
	for what, c := range map[string][2]string{
		"syntax":                   {toml + "\nnonsense", "coppice.toml:"},
		"unknown key":              {toml + "\ncolour = \"red\"", `unknown key "colour"`},
		"store":                    {toml + "\n[store]\npath = \"elsewhere.db\"", "store.path cannot be changed by a reload"},
		"no function":              {strings.Replace(toml, "stamp.py:stamp", "stamp.py:stomp", 1), "stomp"},
		"dropped":                  {strings.NewReplacer("[outbound.emr]", "[outbound.lab]", `["emr"]`, `["lab"]`).Replace(toml), `unfinished work (1) for outbound "emr"`},
		"address taken":            {toml + fmt.Sprintf("\n[inbound.more]\nmllp = { listen = %q }\nhandlers = [\"stamp\"]", other.Addr()), "address already in use"},
		"moved to a taken address": {strings.Replace(toml, "127.0.0.1:0", other.Addr().String(), 1), "address already in use"},
	} {
		write(t, filepath.Join(dir, "coppice.toml"), c[0])
		t.Run(what, func(t *testing.T) { e.refused(t, c[1]) })
	}
	write(t, filepath.Join(dir, "coppice.toml"), toml)
	write(t, filepath.Join(dir, "stamp.py"), "import no_such_module")
	e.refused(t, "no_such_module")
	entries, err := os.ReadDir(filepath.Join(stateFolder(e.cfg), "code"))
	if err != nil || len(entries) != 1 {
		t.Errorf("snapshots left: %v, %v", entries, err)
	}
	if _, err := e.Release(t.Context(), message.Target{Kind: message.KindOutbound, Name: "emr"}, false); err != nil {
		t.Fatal(err)
	}
	// Its listener was closed for a moment by the last but one, and is open again, at a port that was free.
	exchange(t, dial(t, e.Addr("feed")), numbered(1))
	if counts := e.quiet(t, 2); counts[message.Processed] != 2 {
		t.Errorf("%v", counts)
	}
}

// TestReloadRenames: work that waits goes to the name that says was, in order, also that of an inbound at the same address;
// an outbound that is new gets nothing old. Red without rename in change.
func TestReloadRenames(t *testing.T) {
	needPython(t)
	receiver, added := newEMR(t, nil), newEMR(t, nil)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	toml := fmt.Sprintf(stampTOML, address, receiver.Addr())
	dir := folder(t, toml)
	write(t, filepath.Join(dir, "stamp.py"), stamp("0"))
	e := serve(t, dir, Options{})
	if err := e.Hold(t.Context(), message.Target{Kind: message.KindOutbound, Name: "emr"}, "so that work waits"); err != nil {
		t.Fatal(err)
	}
	client := dial(t, e.Addr("feed"))
	for n := range 3 {
		exchange(t, client, numbered(n))
	}
	eventually(t, func() bool {
		s, err := e.Status(t.Context())
		return err == nil && len(s.Lanes) > 0 && s.Lanes[len(s.Lanes)-1].Waiting == 3
	})
	toml = strings.NewReplacer("[outbound.emr]", "[outbound.partner]\nwas = [\"emr\"]", `["emr"]`, `["partner", "added"]`,
		"[inbound.feed]", "[inbound.admissions]\nwas = [\"feed\"]", "[handler.stamp]", "[handler.marks]\nwas = [\"stamp\"]",
		`["stamp"]`, `["marks"]`).Replace(toml)
	write(t, filepath.Join(dir, "coppice.toml"), toml+fmt.Sprintf("\n[outbound.added]\nmllp = { connect = %q }\n", added.Addr()))
	write(t, filepath.Join(dir, "stamp.py"), strings.NewReplacer(`"emr"`, `"partner"`).Replace(stamp("1")))
	if r := e.reload(t); r.Renamed < 3 {
		t.Errorf("renamed %d", r.Renamed)
	}
	s, err := e.Status(t.Context())
	if err != nil || len(s.Holds) != 1 || s.Holds[0].Name != "partner" {
		t.Errorf("holds %+v, %v", s.Holds, err)
	}
	// A former name names nothing: a hold of it would be looked for by nobody. Red without the look in current.
	for _, former := range []message.Target{{Kind: message.KindOutbound, Name: "emr"}, {Kind: message.KindHandler, Name: "stamp"},
		{Kind: message.KindInbound, Name: "feed"}, {Kind: message.KindOutbound, Name: "partner", Inbound: "feed"}} {
		if err := e.Hold(t.Context(), former, "x"); err == nil || !strings.Contains(err.Error(), " now") {
			t.Errorf("hold of %s: %v", former, err)
		}
		if _, err := e.Release(t.Context(), former, false); err == nil || !strings.Contains(err.Error(), " now") {
			t.Errorf("release of %s: %v", former, err)
		}
	}
	if _, err := e.Release(t.Context(), message.Target{Kind: message.KindOutbound, Name: "partner"}, false); err != nil {
		t.Fatal(err)
	}
	exchange(t, dial(t, e.Addr("admissions")), numbered(3))
	e.quiet(t, 4)
	for n, body := range receiver.got() {
		if !strings.HasPrefix(string(body), string(numbered(n))) {
			t.Errorf("delivery %d is %q", n, body)
		}
	}
	if len(receiver.got()) != 4 || len(added.got()) != 0 {
		t.Errorf("%d and %d deliveries", len(receiver.got()), len(added.got()))
	}
	if e.Addr("feed") != "" {
		t.Error("the old name still listens")
	}
	if _, err := mllp.Dial(t.Context(), address); err != nil {
		t.Error("nobody listens any more:", err)
	}
}

// TestReloadAndStop: an engine that stops is not reloaded, and a stop cuts a reload short.
func TestReloadAndStop(t *testing.T) {
	needPython(t)
	receiver := newEMR(t, nil)
	dir := folder(t, fmt.Sprintf(stampTOML, "127.0.0.1:0", receiver.Addr()))
	write(t, filepath.Join(dir, "stamp.py"), stamp("0"))
	e := serve(t, dir, Options{})
	eventually(t, func() bool { return e.since.Load() != nil })
	write(t, filepath.Join(dir, "stamp.py"), "import time\ntime.sleep(3600)\n")
	ended := make(chan error, 1)
	go func() {
		_, err := e.Reload(context.Background())
		ended <- err
	}()
	eventually(t, func() bool { // it has begun
		entries, _ := os.ReadDir(filepath.Join(stateFolder(e.cfg), "code"))
		return len(entries) > 1
	})
	e.end(t)
	if err := <-ended; !errors.Is(err, control.ErrStopping) {
		t.Errorf("the reload ended with %v", err)
	}
	if _, err := e.Reload(t.Context()); !errors.Is(err, control.ErrStopping) {
		t.Errorf("a reload of an engine that has stopped: %v", err)
	}
}

// TestReloadBeforeRun: an engine that is open and does not run yet says so, and that it is not stopping. Red without over.
func TestReloadBeforeRun(t *testing.T) {
	needPython(t)
	dir := folder(t, fmt.Sprintf(stampTOML, "127.0.0.1:0", "127.0.0.1:1"))
	write(t, filepath.Join(dir, "stamp.py"), stamp("0"))
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Reload(t.Context()); !errors.Is(err, control.ErrStarting) {
		t.Errorf("a reload before Run: %v", err)
	}
}

// TestStopped: what can be done to the store of an engine that does not run, and what cannot.
func TestStopped(t *testing.T) {
	needPython(t)
	receiver := newEMR(t, nil)
	dir := folder(t, fmt.Sprintf(stampTOML, "127.0.0.1:0", receiver.Addr()))
	write(t, filepath.Join(dir, "stamp.py"), "from coppice_worker import handler\n@handler\ndef stamp(msg, ctx):\n    raise KeyError(1)\n")
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStopped(t.Context(), cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a store that is not there: %v", err)
	}
	if _, err := os.Stat(cfg.Store.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the store was made: %v", err)
	}
	e := serve(t, dir, Options{})
	if _, err := OpenStopped(t.Context(), cfg); !errors.Is(err, store.ErrLocked) {
		t.Errorf("beside an engine: %v", err)
	}
	exchange(t, dial(t, e.Addr("feed")), numbered(0))
	e.quiet(t, 1)
	e.end(t)

	s, err := OpenStopped(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	target := message.Target{Kind: message.KindHandler, Name: "stamp"}
	if err := s.Hold(t.Context(), message.Target{Kind: message.KindHandler, Name: "stomp"}, ""); !errors.Is(err, store.ErrUndeclared) {
		t.Errorf("hold of what is not declared: %v", err)
	}
	if err := errors.Join(s.Hold(t.Context(), target, "by hand")); err != nil {
		t.Error(err)
	}
	if _, err := s.Replay(t.Context(), 1); err != nil {
		t.Error(err)
	}
	if id, err := s.Resubmit(t.Context(), 1, numbered(1)); id != 2 || err != nil {
		t.Errorf("resubmitted as %d, %v", id, err)
	}
	if _, err := s.Resubmit(t.Context(), 1, make([]byte, 17<<20)); err == nil || !strings.Contains(err.Error(), "takes no more than 16777216") {
		t.Errorf("resubmit of what is too large: %v", err)
	}
	if _, err := s.Resubmit(t.Context(), 9, nil); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("resubmit of what is not there: %v", err)
	}
	if _, err := s.Reload(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("reload: %v", err)
	}
	status, err := s.Status(t.Context())
	if err != nil || status.Running || len(status.Holds) != 1 || len(status.Lanes) != 3 {
		t.Errorf("status %+v, %v", status, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	write(t, filepath.Join(dir, "stamp.py"), stamp("mended"))
	e = serve(t, dir, Options{})
	if _, err := e.Release(t.Context(), target, false); err != nil {
		t.Fatal(err)
	}
	if counts := e.quiet(t, 2); counts[message.Processed] != 2 {
		t.Errorf("%v", counts)
	}
}

// TestRates: what went through in the last minute is counted, and no more.
func TestRates(t *testing.T) {
	var r rates
	lane := message.Target{Kind: message.KindOutbound, Name: "emr", Inbound: "adt"}
	now := time.Now()
	want := func(n int64) {
		t.Helper()
		if got := r.last(now)[lane]; got != n {
			t.Errorf("counted %d, want %d", got, n)
		}
	}
	want(0)
	for range 90 {
		r.count(lane, now)
		now = now.Add(time.Second)
	}
	want(59) // the seconds before this one
	now = now.Add(30 * time.Second)
	want(29)
	r.count(lane, now)
	now = now.Add(24 * time.Hour)
	want(0)
	if len(r.each) != 0 {
		t.Errorf("%d are kept", len(r.each))
	}
}
