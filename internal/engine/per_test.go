package engine

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/message"
)

// perTOML has two handlers of one file, each of which gets the messages of two inbounds.
const perTOML = `
version = 1
[inbound.a]
mllp = { listen = "127.0.0.1:0" }
handlers = ["one", "two"]
[inbound.b]
mllp = { listen = "127.0.0.1:0" }
handlers = ["one", "two"]
[handler.one]
run = "per.py:one"
to = ["out"]
%[1]s
[handler.two]
run = "per.py:two"
to = ["out"]
%[2]s
[outbound.out]
file = { dir = "out", name = "{message}-{inbound}-{handler}-{id}" }
`

const perPython = `
import uuid
from coppice_worker import handler, Send
worker, served = uuid.uuid4().hex, 0
def answer():
    global served
    served += 1
    return Send("out", f"{worker} {served}".encode())
@handler
def one(msg, ctx): return answer()
@handler
def two(msg, ctx): return answer()
`

// TestPer: who has a worker of its own. Red with servedBy ending in its first line ("inbound"), with the look for a shared pool
// left out of building.add (the same), and without spec.Fresh ("message").
func TestPer(t *testing.T) {
	needPython(t)
	for per, want := range map[string]struct {
		second  string // what the second handler's table has, if not the same
		workers int
		who     func(inbound, handler string, message int) string // those with the same answer share a worker
	}{
		"":                {"", 2, func(_, handler string, _ int) string { return handler }},
		`per = "inbound"`: {"", 2, func(inbound, _ string, _ int) string { return inbound }},
		// Red with %v in building.add.
		`per = "inbound"` + "\nsettings = { n = 1 }": {`per = "inbound"` + "\nsettings = { n = '1' }", 4, func(inbound, handler string, _ int) string { return inbound + handler }},
		`per = "message"` + "\nstandbys = 1":         {"", 8, func(_, handler string, message int) string { return fmt.Sprint(handler, message) }},
	} {
		t.Run(per, func(t *testing.T) {
			dir := folder(t, fmt.Sprintf(perTOML, per, cmp.Or(want.second, per)))
			if err := os.WriteFile(filepath.Join(dir, "per.py"), []byte(perPython), 0o600); err != nil {
				t.Fatal(err)
			}
			e := serve(t, dir, Options{})
			for n, inbound := range []string{"a", "b", "a", "b"} {
				exchange(t, dial(t, e.Addr(inbound)), troubleMessage("x"))
				e.quiet(t, int64(n+1))
			}
			e.end(t)
			workerOf, whoHas := map[string]string{}, map[string]string{}
			files, err := filepath.Glob(filepath.Join(dir, "out", "*"))
			if err != nil || len(files) != 8 {
				t.Fatalf("%v, %v", files, err)
			}
			for _, file := range files {
				part := strings.Split(filepath.Base(file), "-")
				var number int
				fmt.Sscan(part[0], &number)
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				worker, _, _ := strings.Cut(string(content), " ")
				who := want.who(part[1], part[2], number)
				if had := workerOf[who]; had != "" && had != worker {
					t.Errorf("%s has had two workers", who)
				}
				if has := whoHas[worker]; has != "" && has != who {
					t.Errorf("%s and %s have had the same worker", who, has)
				}
				workerOf[who], whoHas[worker] = worker, who
			}
			if len(whoHas) != want.workers {
				t.Errorf("%d workers, not %d", len(whoHas), want.workers)
			}
		})
	}
}

const execTOML = `
version = 1
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
handlers = ["upper", "fails"]
[handler.upper]
command = ["tr", "a-z", "A-Z"]
protocol = "exec"
to = ["out", "copy"]
[handler.fails]
command = ["sh", "-c", "echo no table for $COPPICE_SETTING_facility >&2; exit 3"]
protocol = "exec"
to = []
settings = { facility = "WOOD" }
[outbound.out]
file = { dir = "out", name = "{id}" }
[outbound.copy]
file = { dir = "copy", name = "{id}" }
`

// TestExec: a program that is no worker is a handler. Red without spec.Exec.
func TestExec(t *testing.T) {
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("missing: /bin/sh")
	}
	dir := folder(t, execTOML)
	e := serve(t, dir, Options{})
	exchange(t, dial(t, e.Addr("feed")), troubleMessage("abc"))
	e.quiet(t, 1)
	for _, out := range []string{"out", "copy"} {
		files, err := filepath.Glob(filepath.Join(dir, out, "*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%v, %v", files, err)
		}
		if content, err := os.ReadFile(files[0]); err != nil || string(content) != strings.ToUpper(string(troubleMessage("abc"))) {
			t.Errorf("%q, %v", content, err)
		}
	}
	// The other handler's fault is its status, and what it wrote to stderr.
	got, err := e.Store().Timeline(t.Context(), 1)
	if err != nil || got.Message.Disposition != message.Error || !strings.HasPrefix(got.Message.Reason, "exit status 3: no table for WOOD") {
		t.Errorf("%s, %q, %v", got.Message.Disposition, got.Message.Reason, err)
	}
	e.end(t)
}

const limitTOML = `
version = 1
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
handlers = ["prints"]
[handler.prints]
run = "per.py:prints"
to = []
attempts = 1
limits = { output = "64KiB" }
`

// TestLimit: a handler's limits reach its worker, and the error names the one that was hit. Red without spec.Limits.
func TestLimit(t *testing.T) {
	needPython(t)
	dir := folder(t, limitTOML)
	code := "from coppice_worker import handler\n@handler\ndef prints(msg, ctx):\n    while True: print('x' * 1000)\n"
	if err := os.WriteFile(filepath.Join(dir, "per.py"), []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	e := serve(t, dir, Options{})
	exchange(t, dial(t, e.Addr("feed")), troubleMessage("x"))
	e.quiet(t, 1)
	got, err := e.Store().Timeline(t.Context(), 1)
	if err != nil || got.Message.Disposition != message.Error || !strings.HasPrefix(got.Message.Reason, "poison: output: printed ") ||
		!strings.Contains(got.Message.Reason, "more than 65536") {
		t.Errorf("%s, %q, %v", got.Message.Disposition, got.Message.Reason, err)
	}
	e.end(t)
}
