package node

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/wire"
)

const patience = 30 * time.Second

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
	touch(t, ".", "tests", filepath.Join("..", "..", "protocol", "vectors"))
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

// touch opens the files that the suite depends on: go test repeats a cached result unless a file that the test itself
// has opened is another one since.
func touch(t *testing.T, folders ...string) {
	t.Helper()
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if entry.Type().IsRegular() {
				if _, err := os.ReadFile(filepath.Join(folder, entry.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// A binary holds every file of the package, and lays them out for their owner alone. Red with 0o644 in write.
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
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range names {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, Name, name))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: written as %d bytes, want %d: %v", name, len(got), len(want), err)
			}
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	err := filepath.WalkDir(filepath.Join(dir, Name), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// process is a Node worker, started as an engine starts it: from the written SDK, with pipes as descriptors 3 and 4.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	to     *os.File
	from   *os.File
	output bytes.Buffer
	file   string
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
	p := &process{t: t, file: filepath.Join(dir, "adt.mjs")}
	if err := os.WriteFile(p.file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(node, program)
	p.cmd.Env = []string{"COPPICE_WIRE=3,4"}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	childReads, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, childWrites, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.to, p.from = to, from
	p.cmd.ExtraFiles = []*os.File{childReads, childWrites}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	childReads.Close()
	childWrites.Close()
	t.Cleanup(func() { to.Close(); from.Close(); p.cmd.Process.Kill(); p.cmd.Wait() })
	deadline := time.Now().Add(patience)
	if err := errors.Join(to.SetDeadline(deadline), from.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) ask(m wire.Message) wire.Message {
	p.t.Helper()
	f, err := wire.Encode(m, wire.DefaultCaps())
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := f.WriteTo(p.to); err != nil {
		p.t.Fatal(err)
	}
	body, err := wire.ReadFrame(p.from, wire.DefaultCaps())
	if err != nil {
		p.t.Fatalf("%v; it printed %s", err, p.end())
	}
	answer, err := wire.Decode(body, wire.Worker, wire.DefaultCaps())
	if err != nil {
		p.t.Fatal(err)
	}
	return answer
}

func (p *process) boot(offers ...wire.Offer) wire.Message {
	p.t.Helper()
	return p.ask(&wire.Boot{File: p.file, Offers: offers, Settings: map[string]any{"facility": "MERCY"}})
}

func request(phase wire.Phase, name, body string) *wire.Request {
	return &wire.Request{Binding: wire.Binding{ID: "5f3a9c0e1b2d4c6f8091a2b3c4d5e6f7", Phase: phase, Name: name}, Message: 7,
		Inbound: "adt", Received: "2026-01-02T03:04:05Z", Attempt: 1, Timeout: 60000, Body: []byte(body)}
}

// end closes the engine's end and returns what the worker printed.
func (p *process) end() string {
	p.t.Helper()
	p.to.Close()
	p.wait()
	return p.output.String()
}

func (p *process) wait() int {
	p.t.Helper()
	stop := time.AfterFunc(patience, func() { p.cmd.Process.Kill() })
	defer stop.Stop()
	p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
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
	routed, ok := p.ask(request(wire.PhaseRoute, "route", a01)).(*wire.Result)
	if !ok || len(routed.Handlers) != 1 || routed.Handlers[0] != "admit" {
		t.Errorf("routed: %+v", routed)
	}
	r := request(wire.PhaseHandle, "admit", a01)
	admitted, ok := p.ask(r).(*wire.Result)
	if !ok || len(admitted.Sends) != 2 || admitted.Tags["mrn"] != "4711" || r.Check(admitted.Binding) != nil {
		t.Fatalf("admitted: %+v", admitted)
	}
	if got, want := string(admitted.Sends[0].Body), strings.Replace(a01, "2000", "2000^^^MERCY", 1); got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
	if got := string(admitted.Sends[1].Body); got != a01 {
		t.Errorf("archived %q, want %q", got, a01)
	}
	if got, ok := p.ask(request(wire.PhaseHandle, "large", strings.Repeat("y", 20<<20))).(*wire.Result); !ok || len(got.Sends[0].Body) != 20<<20 {
		t.Errorf("large: %+v", got)
	}
	if got := p.end(); got != "admitting 7\n" {
		t.Errorf("it printed %q", got)
	}
	if status := p.cmd.ProcessState.ExitCode(); status != 0 {
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
	if _, err := p.to.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if status := p.wait(); status != 70 {
		t.Errorf("status %d, want 70", status)
	}
	if got := p.output.String(); !strings.Contains(got, "protocol violation: frame-cap") || strings.Count(got, "\n") != 1 {
		t.Errorf("it printed %q", got)
	}
}
