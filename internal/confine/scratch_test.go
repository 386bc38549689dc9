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
		if filepath.Dir(dir.Path) != parent {
			t.Errorf("%q: made %s", name, dir.Path)
		}
		if err := dir.Remove(); err != nil {
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
	root, err := os.OpenRoot(dir.Path)
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
	must(dir.Remove())
	if _, err := os.Stat(dir.Path); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

// decoy makes a folder with a file, which has to survive whatever is removed elsewhere.
func decoy(t *testing.T) (dir string, whole func()) {
	t.Helper()
	dir = t.TempDir()
	file := filepath.Join(dir, "keep")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		if _, err := os.Stat(file); err != nil {
			t.Errorf("what lies elsewhere was removed: %v", err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("what lies elsewhere was changed: %v", err)
		}
	}
}

// swap puts a link to the folder in the place of what is at path.
func swap(t *testing.T, path, to string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Skipf("missing: symbolic links: %v", err)
	}
}

// TestRemoveLink: a worker puts a link in the place of its scratch folder, outwards or to its neighbour's. The link goes, and
// what it leads to stays. Red with the entry opened by its name and not compared: the folder that it leads to is emptied.
func TestRemoveLink(t *testing.T) {
	parent := t.TempDir()
	outside, whole := decoy(t)
	neighbour, err := Scratch(parent, "neighbour")
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(neighbour.Path, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{outside, neighbour.Path, filepath.Base(neighbour.Path)} {
		dir, err := Scratch(parent, "x")
		if err != nil {
			t.Fatal(err)
		}
		swap(t, dir.Path, to)
		if err := dir.Remove(); err != nil {
			t.Errorf("link to %s: %v", to, err)
		}
		if _, err := os.Lstat(dir.Path); !os.IsNotExist(err) {
			t.Errorf("link to %s: it is still there", to)
		}
	}
	whole()
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the neighbour's folder was emptied: %v", err)
	}
	if err := neighbour.Remove(); err != nil {
		t.Error(err)
	}
}

// TestRemoveOther: another folder in the place of the scratch folder is not ours to remove. Red without the comparison.
func TestRemoveOther(t *testing.T) {
	dir, err := Scratch(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir.Path, dir.Path+"-away"); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(dir.Path, "kept")
	if err := os.MkdirAll(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := dir.Remove(); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// TestClear: what an engine before has left goes, and a link in its place goes alone. Red with os.OpenRoot on the path itself.
func TestClear(t *testing.T) {
	outside, whole := decoy(t)
	path := filepath.Join(t.TempDir(), "scratch")
	for range 2 { // nothing there is no error
		if err := Clear(path); err != nil {
			t.Error(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(path, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(path, "a"), 0); err != nil {
		t.Fatal(err)
	}
	if err := Clear(path); err != nil {
		t.Error(err)
	}
	swap(t, path, outside)
	if err := Clear(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	whole()
}

// TestScratchHeals: a worker puts a link in the place of the folder of all scratch folders. The next one is not made where the
// link leads. Red without FolderAt's look.
func TestScratchHeals(t *testing.T) {
	outside, whole := decoy(t)
	parent := filepath.Join(t.TempDir(), "scratch")
	swap(t, parent, outside)
	dir, err := Scratch(parent, "x")
	if err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("a folder was made where the link leads: %v", entries)
	}
	if err := dir.Remove(); err != nil {
		t.Error(err)
	}
	whole()
}
