package confine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveDeep: depth costs no descriptors. The test runs itself again, with few of them. Red with os.RemoveAll: too many
// open files.
func TestRemoveDeep(t *testing.T) {
	if dir := os.Getenv("COPPICE_TEST_REMOVE"); dir != "" {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
			t.Fatal(err)
		}
		if err := Clear(dir); err != nil {
			t.Fatal(err)
		}
		return
	}
	dir := filepath.Join(t.TempDir(), "deep")
	if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("a/", 500)), 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	again := exec.Command(self, "-test.run=^TestRemoveDeep$")
	again.Env = append(os.Environ(), "COPPICE_TEST_REMOVE="+dir)
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}
