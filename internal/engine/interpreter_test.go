package engine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/sandbox"
)

// needNode skips a test that cannot run without.
func needNode(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("missing: node")
	}
}

const nodeTOML = `
version = 1
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
router = "sub/adt.mjs:route"
[handler.admit]
run = "sub/adt.mjs:admit"
to = ["emr"]
deadline = "500ms"
settings = { facility = "MERCY" }
[outbound.emr]
mllp = { connect = %q }
`

const nodeSource = `
import { router, handler, Send } from "coppice-worker";
router(function route(msg) { return msg.hl7.has("ZZZ") ? ["admit"] : []; });
handler(async function admit(msg, ctx) {
  while (msg.hl7.get("ZZZ-1") === "spin") {}
  await null;
  msg.hl7.set("ZZZ-1", ctx.settings.facility);
  return new Send("emr", msg.hl7);
});
`

func nodeFolder(t *testing.T, toml string) string {
	dir := folder(t, toml)
	write(t, filepath.Join(dir, "sub", "adt.mjs"), nodeSource)
	return dir
}

// A handler in JavaScript takes a message from end to end, under the limits of every worker. The SDK is the engine's own,
// also where npm has put another. Red without the Clear in nodeLanguage.
func TestNode(t *testing.T) {
	needNode(t)
	receiver := newEMR(t, nil)
	dir := nodeFolder(t, fmt.Sprintf(nodeTOML, receiver.Addr()))
	stale := filepath.Join(dir, "node_modules", "coppice-worker")
	write(t, filepath.Join(stale, "package.json", "index.js"), `a folder where a file has to go`)
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	exchange(t, client, troubleMessage("fine"))
	e.quiet(t, 1)
	if got, want := receiver.got(), string(troubleMessage("MERCY")); len(got) != 1 || string(got[0]) != want {
		t.Errorf("received %q, want %q", got, want)
	}
}

// A handler that spins for ever, which stops its event loop, is cut at its deadline, and the next message is served. Red with a
// deadline of an hour.
func TestNodeSpins(t *testing.T) {
	needNode(t)
	receiver := newEMR(t, nil)
	cuts := make(chan sandbox.Cut, 10)
	e := serve(t, nodeFolder(t, fmt.Sprintf(nodeTOML, receiver.Addr())), Options{Sandbox: sandbox.Observer{Cut: func(c sandbox.Cut) {
		if c.Why != nil {
			cuts <- c
		}
	}}})
	client := dial(t, e.Addr("feed"))
	exchange(t, client, troubleMessage("spin"))
	exchange(t, client, troubleMessage("fine"))
	counts := e.quiet(t, 2)
	if counts[message.Error] != 1 || counts[message.Processed] != 1 || len(receiver.got()) != 1 {
		t.Errorf("dispositions %v, received %q", counts, receiver.got())
	}
	bad, err := e.Store().Timeline(t.Context(), 1)
	if want := "poison: no answer by the deadline, after 500ms (2 attempts)"; err != nil || afterDeadline(bad.Message.Reason) != want {
		t.Errorf("%q, %v; want %q", bad.Message.Reason, err, want)
	}
	for range 2 {
		if cut := <-cuts; cut.Err != nil {
			t.Errorf("cut %+v", cut)
		}
	}
}

// An interpreter that is missing, is another program or too old is told at its place in the file, once for all that need it,
// and one that nobody needs is not looked for. Red with any case of real taken out.
func TestInterpreters(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("missing: sh")
	}
	for _, c := range []struct{ key, file, prints, want string }{
		{"python", "feed.py:route", "/usr/bin/python3\n3.8\nno", "the interpreter is Python 3.8, and handlers need 3.9 or later"},
		{"node", "sub/adt.mjs:route", "/usr/bin/node\n17.9.1\nno", "the interpreter is Node 17.9.1, and handlers need 18 or later"},
		{"python", "feed.py:route", "hello", "the program does not answer like a Python interpreter"},
		{"node", "sub/adt.mjs:route", "hello", "the program does not answer like a Node interpreter"},
		{"node", "sub/adt.mjs:route", "", `handlers in Node need an interpreter, and there is no "./old"`},
	} {
		other := map[string]string{"python": "node", "node": "python"}[c.key]
		toml := fmt.Sprintf("version = 1\n[sandbox]\n%s = \"./nowhere\"\n%s = \"./old\"\n[inbound.a]\nmllp = { listen = \"127.0.0.1:0\" }\nrouter = %q\n"+
			"[handler.h]\nrun = %q\nto = []\n", other, c.key, c.file, c.file)
		dir := nodeFolder(t, toml)
		if c.prints != "" {
			write(t, filepath.Join(dir, "old"), "#!/bin/sh\ncat <<'E'\n"+c.prints+"\nE\n")
			if err := os.Chmod(filepath.Join(dir, "old"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		cfg, err := config.Load(dir, func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		err = Check(t.Context(), cfg, func(Checked) { t.Error("a worker was started") }, nil)
		var all config.Errors
		if !errors.As(err, &all) || len(all) != 1 || !strings.Contains(all[0].Error(), "coppice.toml:4:") || !strings.Contains(all[0].Error(), c.want) {
			t.Errorf("%s %q: %v; want line 4, %s", c.key, c.prints, err, c.want)
		} else if !strings.Contains(all[0].Hint, "set "+c.key+" = ") {
			t.Errorf("%s: hint %q", c.key, all[0].Hint)
		}
	}
}
