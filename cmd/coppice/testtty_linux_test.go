package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const slowTOML = `version = 1
[inbound.adt]
mllp = { listen = "127.0.0.1:6661" }
handlers = ["upper"]
[handler.upper]
command = ["sh", "-c", "sleep 0.2; exec tr a-z A-Z"]
protocol = "exec"
to = ["archive"]
[outbound.archive]
file = { dir = "out" }
`

// slowCases makes a folder with a configuration whose handler takes its time, and n cases.
func slowCases(t *testing.T, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	files := map[string]string{"feed/coppice.toml": slowTOML}
	for i := range n {
		files[fmt.Sprintf("cases/%04d.hl7", i)] = "MSH|^~\\&|A|B|C|D|20260102||ADT^A01|1|P|2.5\rPID|1||7||Rowan\r"
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestTestAtTerminal: colour from the first line on, a bar once it has taken a while, and ^C ends it with 130 and leaves no folder.
// Red with terminal(io.out) false in inColor; without progress's bar; and with Close's clearing taken out.
func TestTestAtTerminal(t *testing.T) {
	dir, tmp := slowCases(t, 200), t.TempDir() // of which there is no time for all
	t.Setenv("TMPDIR", tmp)
	t.Setenv("NO_COLOR", "")
	c := atConsole(t, "coppice", "test", filepath.Join(dir, "cases"), "--config", filepath.Join(dir, "feed"))
	c.sees(`\x1b\[33mnew  \x1b\[0m .*0000.hl7.*\x1b\[31;7mRowan\x1b\[0m`)
	c.sees(`testing +\d+%`)
	c.types("\x03")
	c.sees(`0 failed, \d+ without expectation\r\ncoppice: ended by interrupt`)
	if ws := c.ends(); ws.ExitStatus() != exitSignal+2 {
		t.Errorf("ended with %v", ws)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestTestNoColor: NO_COLOR is obeyed at a terminal. Red without the look at it in inColor.
func TestTestNoColor(t *testing.T) {
	dir := slowCases(t, 1)
	t.Setenv("NO_COLOR", "1")
	c := atConsole(t, "coppice", "test", filepath.Join(dir, "cases"), "--config", filepath.Join(dir, "feed"))
	c.sees("1 without expectation")
	c.ends()
	if strings.Contains(c.shown(), "\x1b[") {
		t.Errorf("%q", c.shown())
	}
}
