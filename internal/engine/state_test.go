package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/config"
)

const stateTOML = `
version = 1
[store]
path = "coppice.db"
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
handlers = ["through"]
[handler.through]
run = "feed.py:through"
to = ["archive", "emr"]
[outbound.archive]
file = { dir = "out" }
[outbound.emr]
mllp = { connect = "127.0.0.1:1" }
`

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// open opens an engine and closes it again.
func open(t *testing.T, dir string) {
	t.Helper()
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestStateIsApart: a store in the configuration's own folder, beside folders of the user's that have the names of the
// engine's. Red with the folder of the store in place of stateFolder: theirs are cleared.
func TestStateIsApart(t *testing.T) {
	needPython(t)
	dir := folder(t, stateTOML)
	theirs := []string{"scratch/notes.txt", "code/lib.py", "sdk/mine.py"}
	for _, name := range theirs {
		write(t, filepath.Join(dir, name), "mine")
	}
	for range 2 {
		open(t, dir)
	}
	for _, name := range theirs {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "mine" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	snapshots, err := filepath.Glob(filepath.Join(dir, "coppice.db.work", "code", "*"))
	if err != nil || len(snapshots) != 1 {
		t.Fatalf("snapshots: %v, %v", snapshots, err)
	}
	var names []string
	entries, err := os.ReadDir(snapshots[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"code", "coppice.toml", "feed.py", "scratch", "sdk"}; !slices.Equal(names, want) {
		t.Errorf("the snapshot has %v, and should have %v: no store, no deliveries", names, want)
	}
}

// TestStateOfAHostileWorker: what a worker of the same user can leave behind neither keeps the next engine from starting nor
// leads it to clear anything of the user's. Red with os.MkdirAll in place of confine.FolderAt (the decoy is cleared), and, but
// for root, with os.RemoveAll in place of confine.Clear (it does not start). Red without
// "control" in Open: no engine ever takes orders again.
func TestStateOfAHostileWorker(t *testing.T) {
	needPython(t)
	dir := folder(t, stateTOML)
	open(t, dir)
	work := filepath.Join(dir, "coppice.db.work")
	write(t, filepath.Join(work, "scratch", "closed", "file"), "")
	decoy := t.TempDir()
	write(t, filepath.Join(decoy, "keep", "file"), "mine")
	snapshots, _ := filepath.Glob(filepath.Join(work, "code", "*"))
	write(t, filepath.Join(snapshots[0], "closed", "file"), "")
	for _, closed := range []string{filepath.Join(work, "scratch", "closed"), filepath.Join(snapshots[0], "closed")} {
		if err := os.Chmod(closed, 0); err != nil {
			t.Fatal(err)
		}
	}
	control := filepath.Join(work, "control")
	write(t, filepath.Join(control, "closed", "file"), "")
	open(t, dir)
	if _, err := os.Lstat(control); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder stands where the next engine is to take orders: %v", err)
	}
	for _, name := range []string{"code", "scratch", "sdk", "control", "cuts", ""} {
		path := filepath.Join(work, name)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(decoy, path); err != nil {
			t.Skipf("missing: symbolic links: %v", err)
		}
		open(t, dir)
		if b, err := os.ReadFile(filepath.Join(decoy, "keep", "file")); err != nil || string(b) != "mine" {
			t.Fatalf("with a link for %q: %v", name, err)
		}
		if entries, err := os.ReadDir(decoy); err != nil || len(entries) != 1 {
			t.Fatalf("with a link for %q there is more where it leads: %v, %v", name, entries, err)
		}
	}
}

// TestSnapshotFollowsLinks: code that is reached by a link is code: the folder itself (a deployment's "current"), a folder
// in it, a file. A link in a circle ends. Red with filepath.WalkDir, which does not enter any of them.
func TestSnapshotFollowsLinks(t *testing.T) {
	real := folder(t, stateTOML)
	elsewhere := t.TempDir()
	write(t, filepath.Join(elsewhere, "lib", "tables.py"), "x = 1\n")
	for link, to := range map[string]string{"linked": filepath.Join(elsewhere, "lib"), "one.py": filepath.Join(elsewhere, "lib", "tables.py"),
		"circle": ".", "nowhere": "not/there", "a1": "a2", "a2": "a1"} {
		if err := os.Symlink(to, filepath.Join(real, link)); err != nil {
			t.Skipf("missing: symbolic links: %v", err)
		}
	}
	current := filepath.Join(t.TempDir(), "current")
	if err := os.Symlink(real, current); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(current, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	s, err := takeSnapshot(cfg, filepath.Join(t.TempDir(), "code"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"feed.py", "linked/tables.py", "one.py"} {
		if _, err := os.Stat(filepath.Join(s.Dir, name)); err != nil {
			t.Error(err)
		}
	}
	if strings.Contains(s.Hash, "/") || len(s.Hash) != 16 {
		t.Errorf("hash %q", s.Hash)
	}
}

// TestSecretsStayOut: what comes from the environment is in no error about the configuration, whoever reports it. Red with
// told returning err, and with the name in place of what is written.
func TestSecretsStayOut(t *testing.T) {
	needPython(t)
	const secret = "192.0.2.77" // an address of nobody's (RFC 5737): to listen there fails at once
	for old, new := range map[string]string{
		`run = "feed.py:through"`:           `command = ["${SECRET}"]`,
		`version = 1`:                       "version = 1\nsandbox = { python = \"${SECRET}\" }",
		`mllp = { listen = "127.0.0.1:0" }`: `mllp = { listen = "${SECRET}:99" }`,
		`file = { dir = "out" }`:            `file = { dir = "${SECRET}/feed.py" }`,
	} {
		dir := folder(t, strings.Replace(stateTOML, old, new, 1))
		write(t, filepath.Join(dir, secret, "feed.py"), "")
		env := func(string) (string, bool) { return secret, true }
		cfg, err := config.Load(dir, env)
		if err == nil {
			err = Check(t.Context(), cfg, func(Checked) {}, nil)
		}
		if err == nil {
			var e *Engine
			if e, err = Open(t.Context(), cfg, Options{}); err == nil {
				e.Close()
			}
		}
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", new, err)
		}
	}
}
