package shim_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"coppice.dev/coppice/internal/shim"
	_ "coppice.dev/coppice/tree/shimhook"
	"golang.org/x/sys/unix"
)

// TestMain is, when the environment asks for a shim and the hook has not made one, a program that says so.
func TestMain(m *testing.M) {
	if _, asked := os.LookupEnv(shim.Env); asked {
		fmt.Println("no shim")
		return
	}
	os.Exit(m.Run())
}

func memory(t *testing.T, content string, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	f.WriteString(content)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

// Red with the look at the seals removed, and with the look at the content.
func TestOnlyAnEnginesTriggerMakesAShim(t *testing.T) {
	if !shim.Marked() {
		t.Fatal("the hook did not run")
	}
	const all = shim.Seals
	trigger := memory(t, shim.Magic, all)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for name, c := range map[string]struct {
		env  string
		file *os.File
		shim bool
	}{
		"nothing there":  {"3", nil, false},
		"standard input": {"0", nil, false},
		"no number":      {"x", trigger, false},
		"empty":          {"", trigger, false},
		"a pipe":         {"3", r, false},
		"unsealed":       {"3", memory(t, shim.Magic, 0), false},
		"can be written": {"3", memory(t, shim.Magic, all&^unix.F_SEAL_WRITE), false},
		"something else": {"3", memory(t, "coppice shim 9\n", all), false},
		"longer":         {"3", memory(t, shim.Magic+"x", all), false},
		"a trigger":      {"3", trigger, true},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{shim.Env + "=" + c.env}
			if c.file != nil {
				cmd.ExtraFiles = []*os.File{c.file}
			}
			out, err := cmd.Output()
			if want := map[bool]string{true: "", false: "no shim\n"}[c.shim]; err != nil || !bytes.Equal(out, []byte(want)) {
				t.Errorf("%q, %v; want %q", out, err, want)
			}
		})
	}
}
