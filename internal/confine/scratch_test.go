package confine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScratch(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "made", "too")
	for _, name := range []string{"adt", "../../etc", "a/b*\x00\xff", strings.Repeat("x", 1000), ""} {
		dir, err := Scratch(parent, name)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if filepath.Dir(dir) != parent {
			t.Errorf("%q: made %s", name, dir)
		}
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(parent); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestRemove: a worker cannot make a folder that stays, or that leads the removal elsewhere. Red with os.RemoveAll for the
// folders that are closed (but for root).
func TestRemove(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := Scratch(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(root.MkdirAll("closed/within/closed", 0o700))
	must(root.WriteFile("closed/within/closed/file", nil, 0o400))
	must(root.Chmod("closed/within/closed", 0))
	must(root.Chmod("closed/within", 0))
	must(root.Chmod("closed", 0))
	must(root.Mkdir("many", 0o700))
	for i := range 3 * batch {
		must(root.WriteFile(filepath.Join("many", strings.Repeat("f", i%200+1)+"-"+string(rune('a'+i/200))), nil, 0o600))
	}
	must(root.Mkdir("links", 0o700))
	if err := root.Symlink(filepath.Dir(outside), "links/out"); err != nil {
		t.Log(err)
	}
	must(root.Chmod(".", 0))
	must(Remove(dir))
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	must(Remove(dir))
}
