package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestHookIsEarly: what this program has no use for as a shim is initialised after the hook, which never returns then. Red with
// golang.org/x/sys/unix imported by internal/shim.
func TestHookIsEarly(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before, _, found := strings.Cut(string(out), "init coppice.dev/coppice/tree/shimhook ")
	if !found {
		t.Fatalf("the hook is not among:\n%s", out)
	}
	for _, late := range []string{"os", "encoding/json", "crypto/sha256", "golang.org/x/sys/unix"} {
		if strings.Contains(before, "init "+late+" ") {
			t.Errorf("%s is initialised before the hook", late)
		}
	}
}
