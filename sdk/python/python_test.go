package python

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

// findPython returns a python3 of at least 3.9, or skips and says so.
func findPython(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("missing: python3")
	}
	look := exec.Command(path, "-I", "-c", "import sys; print(sys.executable); sys.exit(sys.version_info < (3, 9))")
	out, err := look.Output()
	if err != nil {
		t.Skipf("missing: python3 from 3.9 on: %s: %v", path, err)
	}
	return strings.TrimSpace(string(out)) // the interpreter itself, not a launcher in front of it
}

// skippedUnittest is how the suite's runner tells of a test that it skipped.
var skippedUnittest = regexp.MustCompile(`\.\.\. skipped ['"](.*)['"]$`)

// The SDK's own suite. What it skips is skipped here too, so that it is seen.
func TestUnittest(t *testing.T) {
	sdktest.Touch(t, "coppice_worker", "tests", filepath.Join("..", "..", "protocol", "vectors"), filepath.Join("..", "..", "protocol", "hl7"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, findPython(t), "-B", "-W", "error", "-m", "unittest", "discover", "-s", "tests", "-v")
	cmd.Env = append(os.Environ(), "PYTHONPATH=.")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Ran ") || strings.HasPrefix(line, "SEED") {
			t.Log(line)
		}
		if found := skippedUnittest.FindStringSubmatch(line); found != nil {
			t.Run("unittest", func(t *testing.T) { t.Skip(found[1]) })
		}
	}
}

// A binary holds every file of the SDK, and lays them out for their owner alone. Red with 0o644 in sdk.Write.
func TestWriteTo(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // a second time over the first
		program, err := WriteTo(dir)
		if err != nil {
			t.Fatal(err)
		}
		if program != filepath.Join(dir, "coppice_worker", "__main__.py") {
			t.Errorf("the program is %s", program)
		}
	}
	files, err := filepath.Glob("coppice_worker/*.*")
	if err != nil {
		t.Fatal(err)
	}
	sdktest.Laid(t, files, filepath.Join(dir, "coppice_worker"))
}

// process is a Python worker, started as an engine starts it: from the written SDK, with descriptors 3 and 4.
type process struct {
	*sdktest.Worker
	file string
}

func start(t *testing.T, source string) *process {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("missing: descriptors 3 and 4 of a child, which os/exec does not hand over on Windows")
	}
	python := findPython(t)
	dir := t.TempDir()
	program, err := WriteTo(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "adt.py")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-I", "-B", program)
	cmd.Env = []string{"COPPICE_WIRE=3,4"}
	cmd.Dir = dir
	return &process{sdktest.Start(t, cmd), file}
}

func (p *process) boot(offers ...wire.Offer) wire.Message {
	return p.Ask(&wire.Boot{File: p.file, Offers: offers, Settings: map[string]any{"facility": "MERCY"}})
}

const adt = `
from coppice_worker import router, handler, Send, Drop

@router
def route(msg, ctx):
    return ["admit"] if msg.hl7["MSH-9.2"] in ("A01", "A08") else []

@handler
def admit(msg, ctx):
    print("admitting", msg.id)
    h = msg.hl7
    if not h["PID-3.1"]:
        return Drop("no MRN")
    msg.tag(mrn=h["PID-3.1"])
    h["PV1-3.4"] = ctx.settings["facility"]
    return [Send("emr", h), Send("archive", msg.body)]

@handler
def raising(msg, ctx):
    raise ValueError("no")

@handler
def nonsense(msg, ctx):
    return 1
`

const a01 = "MSH|^~\\&|||||||ADT^A01|C1\rPID|1||4711^^^H\rPV1|1|I|2000\r"

func TestExchange(t *testing.T) {
	p := start(t, adt)
	ready, ok := p.boot(wire.Offer{Phase: wire.PhaseHandle, Name: "admit"}, wire.Offer{Phase: wire.PhaseRoute, Name: "route"}).(*wire.Ready)
	if !ok || len(ready.Offers) != 4 {
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
	if f, ok := p.Ask(sdktest.Request(wire.PhaseHandle, "raising", "")).(*wire.Fail); !ok || f.Fault.Type != "ValueError" || !strings.Contains(f.Fault.Traceback, "in raising") {
		t.Errorf("raised: %+v", f)
	}
	if f, ok := p.Ask(sdktest.Request(wire.PhaseHandle, "nonsense", "")).(*wire.Fail); !ok || f.Fault.Type != "result" {
		t.Errorf("nonsense: %+v", f)
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
	p = start(t, "import nothing_of_that_name")
	failed, ok = p.boot().(*wire.BootFail)
	if !ok || failed.Fault.Type != "ModuleNotFoundError" || !strings.Contains(failed.Fault.Traceback, "adt.py") {
		t.Errorf("%+v", failed)
	}
}

// Red with runner.main returning 0 on a Violation.
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
