package python

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// findPip returns a python3 that can install from a folder without the network, or skips.
func findPip(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import setuptools, wheel, pip").Run() == nil {
			return name
		}
	}
	t.Skip("missing: python3 with pip, setuptools and wheel")
	return ""
}

// TestInstallsWithPip: pip makes a package of this folder, with every file of it, and a handler runs from what it installed.
// Red without py.typed in pyproject.toml's package-data, and without "packages" there.
func TestInstallsWithPip(t *testing.T) {
	python, source, target := findPip(t), t.TempDir(), t.TempDir()
	if _, err := WriteTo(source); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pyproject.toml", "README.md"} {
		copied(t, name, filepath.Join(source, name))
	}
	sources, err := filepath.Glob("coppice_worker/*.*")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := func(stdin string, args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(ctx, python, args...)
		cmd.Dir, cmd.Stdin = t.TempDir(), bytes.NewReader([]byte(stdin))
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "PIP_CONFIG_FILE="+os.DevNull, "PYTHONPATH="+target)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	run("", "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--target", target, source)
	for _, name := range sources {
		if _, err := os.Stat(filepath.Join(target, name)); err != nil {
			t.Errorf("not installed: %v", err)
		}
	}
	if info, _ := fs.Glob(os.DirFS(target), "coppice_worker-*.dist-info/METADATA"); len(info) != 1 {
		t.Errorf("metadata: %v", info)
	}
	if out := run("", "-c", "import coppice_worker; print(coppice_worker.__file__)"); !bytes.HasPrefix(out, []byte(target)) {
		t.Errorf("imported from %s", out)
	}
	handler := filepath.Join(t.TempDir(), "adt.py")
	code := "from coppice_worker import handler, Send\n@handler\ndef admit(msg, ctx):\n    return Send('emr', 'MRN ' + msg.hl7['PID-3'])\n"
	if err := os.WriteFile(handler, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	out := run("MSH|^~\\&|A|B|C|D|20260101||ADT^A01|1|P|2.5\rPID|1||42\r", "-m", "coppice_worker", "run", handler+":admit", "-")
	if !bytes.Contains(out, []byte("MRN 42")) {
		t.Errorf("the handler's answer: %s", out)
	}
}

func copied(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
