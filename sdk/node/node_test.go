package node

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/sdk/sdktest"
	"coppice.dev/coppice/wire"
)

// findNode returns a node of at least 18, or skips and says so.
func findNode(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skip("missing: node")
	}
	out, err := exec.Command(path, "-e", "console.log(process.execPath); process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)").Output()
	if err != nil {
		t.Skipf("missing: node from 18 on: %s: %v", path, err)
	}
	return strings.TrimSpace(string(out)) // the interpreter itself, not a launcher in front of it
}

// skipped is how node --test tells, in TAP, of a test that it skipped, and why.
var skipped = regexp.MustCompile(`^ok \d+ .*# SKIP (.*)$`)

// The SDK's own suite. What it skips is skipped here too, so that it is seen.
func TestSuite(t *testing.T) {
	sdktest.Touch(t, ".", "tests", filepath.Join("..", "..", "protocol", "vectors"))
	files, err := filepath.Glob("tests/*.test.js")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, findNode(t), append([]string{"--test", "--test-reporter=tap"}, files...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "# pass") {
			t.Log(line)
		}
		if found := skipped.FindStringSubmatch(line); found != nil {
			t.Run("suite", func(t *testing.T) { t.Skip(found[1]) })
		}
	}
}

// A binary holds every file of the package, and lays them out for their owner alone. Red with 0o644 in sdk.Write.
func TestWriteTo(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // a second time over the first
		program, err := WriteTo(dir)
		if err != nil {
			t.Fatal(err)
		}
		if program != filepath.Join(dir, "coppice-worker", "main.js") {
			t.Errorf("the program is %s", program)
		}
	}
	for _, pattern := range []string{"*.js", "*.d.ts", "package.json"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		sdktest.Laid(t, files, filepath.Join(dir, Name))
	}
}

// process is a Node worker, started as an engine starts it: from the written SDK, with pipes as descriptors 3 and 4.
type process struct {
	*sdktest.Worker
	file string
}

func start(t *testing.T, source string) *process {
	t.Helper()
	node := findNode(t)
	if runtime.GOOS == "windows" {
		t.Skip("missing: descriptors 3 and 4 of a child, which os/exec does not hand over on Windows")
	}
	dir := t.TempDir()
	program, err := WriteTo(filepath.Join(dir, "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "adt.mjs")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, program)
	cmd.Env = []string{"COPPICE_WIRE=3,4"}
	cmd.Dir = dir
	return &process{sdktest.Start(t, cmd), file}
}

func (p *process) boot(offers ...wire.Offer) wire.Message {
	return p.Ask(&wire.Boot{File: p.file, Offers: offers, Settings: map[string]any{"facility": "MERCY"}})
}

const adt = `
import { router, handler, Send, Drop } from "coppice-worker";

router(function route(msg) {
  return ["A01", "A08"].includes(msg.hl7.get("MSH-9.2")) ? ["admit"] : [];
});

handler(async function admit(msg, ctx) {
  console.log("admitting", msg.id);
  const h = msg.hl7;
  if (h.get("PID-3.1") === "") {
    return new Drop("no MRN");
  }
  msg.tag({ mrn: h.get("PID-3.1") });
  h.set("PV1-3.4", ctx.settings.facility);
  return [new Send("emr", h), new Send("archive", msg.body)];
});

handler(function large() {
  return new Send("emr", Buffer.alloc(20 << 20, "x"));
});
`

const a01 = "MSH|^~\\&|||||||ADT^A01|C1\rPID|1||4711^^^H\rPV1|1|I|2000\r"

// Go's side of the wire and this SDK's understand each other, also where a frame is larger than any pipe.
func TestExchange(t *testing.T) {
	p := start(t, adt)
	ready, ok := p.boot(wire.Offer{Phase: wire.PhaseHandle, Name: "admit"}, wire.Offer{Phase: wire.PhaseRoute, Name: "route"}).(*wire.Ready)
	if !ok || len(ready.Offers) != 3 {
		t.Fatalf("booted as %+v", ready)
	}
	routed, ok := p.Ask(sdktest.Request(wire.PhaseRoute, "route", a01)).(*wire.Result)
	if !ok || len(routed.Handlers) != 1 || routed.Handlers[0] != "admit" {
		t.Errorf("routed: %+v", routed)
	}
	r := sdktest.Request(wire.PhaseHandle, "admit", a01)
	admitted, ok := p.Ask(r).(*wire.Result)
	if !ok || len(admitted.Sends) != 2 || admitted.Tags["mrn"] != "4711" || r.Check(admitted.Binding) != nil {
		t.Fatalf("admitted: %+v", admitted)
	}
	if got, want := string(admitted.Sends[0].Body), strings.Replace(a01, "2000", "2000^^^MERCY", 1); got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
	if got := string(admitted.Sends[1].Body); got != a01 {
		t.Errorf("archived %q, want %q", got, a01)
	}
	if got, ok := p.Ask(sdktest.Request(wire.PhaseHandle, "large", strings.Repeat("y", 20<<20))).(*wire.Result); !ok || len(got.Sends[0].Body) != 20<<20 {
		t.Errorf("large: %+v", got)
	}
	if got := p.End(); got != "admitting 7\n" {
		t.Errorf("it printed %q", got)
	}
	if status := p.Cmd.ProcessState.ExitCode(); status != 0 {
		t.Errorf("status %d, want 0", status)
	}
}

func TestBootFail(t *testing.T) {
	p := start(t, adt)
	failed, ok := p.boot(wire.Offer{Phase: wire.PhaseHandle, Name: "admitt"}).(*wire.BootFail)
	if !ok || !strings.Contains(failed.Fault.Text, `did you mean "admit"?`) {
		t.Errorf("%+v", failed)
	}
}

// Red with main returning 0 on a Violation.
func TestViolation(t *testing.T) {
	p := start(t, adt)
	p.boot()
	if _, err := p.To.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if status := p.Wait(); status != 70 {
		t.Errorf("status %d, want 70", status)
	}
	if got := p.Printed(); !strings.Contains(got, "protocol violation: frame-cap") || strings.Count(got, "\n") != 1 {
		t.Errorf("it printed %q", got)
	}
}
