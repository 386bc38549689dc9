package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

const (
	goodInbound = "[inbound.adt]\nmllp = { listen = \"127.0.0.1:6661\" }\nhandlers = [\"admit\"]\n"
	goodHandler = "[handler.admit]\nrun = \"adt.py:admit\"\nto = []\n"
	good        = "version = 1\n" + goodInbound + goodHandler
)

// parseGood parses text as if it stood in testdata/good.
func parseGood(t *testing.T, text string) *Config {
	t.Helper()
	cfg, err := Parse(filepath.Join("testdata", "good", FileName), []byte(text), testEnv)
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	return cfg
}

// equal compares all but where things are written.
func equal(t *testing.T, got *Config, want Config) {
	t.Helper()
	plain := *got
	plain.root = nil
	if !reflect.DeepEqual(plain, want) {
		t.Errorf("got  %+v\nwant %+v", plain, want)
	}
}

func defaultSandbox() Sandbox {
	return Sandbox{Mode: "subprocess", Python: "python3", Node: "node", StartTimeout: 10 * time.Second}
}

func defaultMemory() Memory { return Memory{Bodies: 512 << 20} }

func defaultRetention() Retention {
	return Retention{Done: 30 * 24 * time.Hour, Dead: 90 * 24 * time.Hour}
}

func defaultLimits() Limits { return Limits{IdleCPU: 5 * time.Second, Output: 64 << 20} }

func defaultRetry() Retry {
	return Retry{First: time.Second, Max: 5 * time.Minute, Rejected: 3, Then: "dead_letter"}
}

// TestAim reads the configuration of the pipeline's design, whole.
func TestAim(t *testing.T) {
	file := filepath.Join("testdata", "good", "aim.toml")
	cfg, err := Load(file, testEnv)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(filepath.Join("testdata", "good"))
	if err != nil {
		t.Fatal(err)
	}
	sandbox := defaultSandbox()
	sandbox.Level = "atomic"
	equal(t, cfg, Config{
		File: file, Dir: dir, Version: 1,
		Store:   Store{Path: filepath.Join(dir, "var", "coppice.db"), MinFree: 1 << 30, Retention: defaultRetention()},
		Memory:  defaultMemory(),
		Sandbox: sandbox,
		Inbounds: []Inbound{{
			Name:   "adt",
			MLLP:   &MLLPIn{Listen: "127.0.0.1:6661", MaxMessage: 16 << 20, Ack: "original"},
			Router: &Ref{File: "adt.py", Name: "route"}, HoldAfter: 5,
		}},
		Handlers: []Handler{{
			Name: "admit", Run: &Ref{File: "adt.py", Name: "admit"}, Protocol: "wire",
			To: []string{"emr", "archive"}, Deadline: 5 * time.Second, Attempts: 2, Per: "handler", Limits: defaultLimits(), HoldAfter: 5,
			Settings: map[string]any{"facility": secret},
		}},
		Outbounds: []Outbound{
			{
				Name: "emr", Order: "strict", Parallel: 1, Retry: Retry{First: time.Second, Max: 5 * time.Minute, Rejected: 3, Then: "hold"},
				MLLP: &MLLPOut{Connect: "emr.example:6671", AckTimeout: 30 * time.Second, Connection: "persistent"},
			},
			{
				Name: "archive", Order: "strict", Parallel: 1, Retry: defaultRetry(),
				File: &FileOut{Dir: filepath.Join(dir, "out", "adt"), Name: "{id}.hl7"},
			},
		},
	})
}

func TestEveryKey(t *testing.T) {
	cfg := parseGood(t, `
version = 1
store.path = "data/q.db"
store.min_free = "0B"
store.retention = { done = "1d12h", dead = "forever" }
memory.bodies = "1GiB"
alerts = { command = ["./page.sh", "-v"], webhook = "https://pager.example.org/x", oldest = "1m", repeat = "1d" }
[sandbox]
mode = "subprocess"
level = "group"
python = "venv/bin/python"
node = "node/bin/node"
start_timeout = "1m30s"
[inbound.files.file]
dir = "in"
pattern = "*.[ht]*"
poll = "500ms"
stable = "0s"
max_message = "63MiB"
after = "delete"
[inbound.moved]
duplicates = { within = "1h" }
hold_after = 7
was = ["one"]
file = { dir = "in2", move_to = "gone" }
router = { command = ["./bin/route", "-v"], name = "route" }
[inbound.files]
handlers = ["one", "two"]
[handler.two]
command = ["worker", ""]
to = []
attempts = 10
deadline = "1h"
per = "inbound"
standbys = 3
hold_after = 0
was = ["zwei", "deux"]
limits = { cpu = "30s", idle_cpu = "1m", output = "1KiB", memory = "1GiB", idle = "2h" }
[handler.one]
command = ["bin/one"]
protocol = "exec"
to = ["9"]
settings = { s = "x", i = 0x10, f = 1_0.5, b = true, "dotted.key" = "$$$$5 $5 $" }
[outbound.9]
file = { dir = "out", name = "x-{id}" }
order = "none"
parallel = 64
was = ["8"]
retry = { first = "2s", max = "1d", rejected = 9, then = "hold" }
`)
	at := func(name string) string { return filepath.Join(cfg.Dir, filepath.FromSlash(name)) }
	equal(t, cfg, Config{
		File: cfg.File, Dir: cfg.Dir, Version: 1,
		Store: Store{Path: at("data/q.db"), Retention: Retention{Done: 36 * time.Hour}},
		Alerts: &Alerts{Command: []string{at("page.sh"), "-v"}, Webhook: "https://pager.example.org/x", Oldest: time.Minute,
			Repeat: 24 * time.Hour},
		Memory:  Memory{Bodies: 1 << 30},
		Sandbox: Sandbox{Mode: "subprocess", Level: "group", Python: at("venv/bin/python"), Node: at("node/bin/node"), StartTimeout: 90 * time.Second},
		Inbounds: []Inbound{
			{
				Name: "files", Handlers: []string{"one", "two"}, HoldAfter: 5,
				File: &FileIn{Dir: at("in"), Pattern: "*.[ht]*", Poll: 500 * time.Millisecond, MaxMessage: 63 << 20, After: "delete"},
			},
			{
				Name: "moved", HoldAfter: 7, Duplicates: &Duplicates{Key: "MSH-10", Within: time.Hour}, Was: []string{"one"}, Router: &Ref{Command: []string{at("bin/route"), "-v"}, Name: "route"},
				File: &FileIn{
					Dir: at("in2"), Pattern: "*.hl7", Poll: time.Second, Stable: 2 * time.Second, MaxMessage: 16 << 20,
					After: "move", MoveTo: at("gone"),
				},
			},
		},
		Handlers: []Handler{
			{
				Name: "two", Command: []string{"worker", ""}, Protocol: "wire", To: []string{},
				Deadline: time.Hour, Attempts: 10, Settings: map[string]any{}, Per: "inbound", Standbys: 3,
				Was:    []string{"zwei", "deux"},
				Limits: Limits{CPU: 30 * time.Second, IdleCPU: time.Minute, Output: 1 << 10, Memory: 1 << 30, Idle: 2 * time.Hour},
			},
			{
				Name: "one", Command: []string{at("bin/one")}, Protocol: "exec", To: []string{"9"}, Deadline: 5 * time.Second, Attempts: 2,
				Per: "handler", Limits: defaultLimits(), HoldAfter: 5,
				Settings: map[string]any{"s": "x", "i": int64(16), "f": 10.5, "b": true, "dotted.key": "$$5 $5 $"},
			},
		},
		Outbounds: []Outbound{{
			Name: "9", Order: "none", Parallel: 64, File: &FileOut{Dir: at("out"), Name: "x-{id}"},
			Retry: Retry{First: 2 * time.Second, Max: 24 * time.Hour, Rejected: 9, Then: "hold"}, Was: []string{"8"},
		}},
	})
}

func TestDefaults(t *testing.T) {
	cfg := parseGood(t, good+"[outbound.o]\nfile = { dir = \"out\" }\n[inbound.f]\nfile = { dir = \"in\" }\nhandlers = [\"admit\"]\n")
	store := Store{Path: filepath.Join(cfg.Dir, "var", "coppice.db"), MinFree: 256 << 20, Retention: defaultRetention()}
	if cfg.Store != store || cfg.Sandbox != defaultSandbox() {
		t.Errorf("%+v", cfg)
	}
	if cfg.Outbounds[0].Retry != defaultRetry() || cfg.Inbounds[1].File.MoveTo != filepath.Join(cfg.Dir, "in", "done") {
		t.Errorf("%+v", cfg)
	}
}

// TestText reads what editors on other systems write. Red with the TrimPrefix in tree taken out.
func TestText(t *testing.T) {
	for name, text := range map[string]string{
		"CRLF": strings.ReplaceAll(good, "\n", "\r\n"),
		"BOM":  "\xef\xbb\xbf" + good,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := parseGood(t, text)
			if pos := cfg.Pos("handler", "admit", "run"); pos != (Pos{6, 7}) {
				t.Errorf("run is at %s", pos)
			}
		})
	}
}

// TestEnvironment: what a variable holds is not looked at again, and keys and comments are left alone. Red with the rest
// of substitute's loop run over the value.
func TestEnvironment(t *testing.T) {
	env := func(name string) (string, bool) {
		value, ok := map[string]string{"A": "${B}$$", "B": "\"\n[handler.x]", "EMPTY": ""}[name]
		return value, ok
	}
	text := good + "settings = { \"${KEY}\" = \"${A}|${B}|${EMPTY}|$${A}|$$$${A}\", y = '${B}' } # ${COMMENT}\n"
	cfg, err := Parse(filepath.Join("testdata", "good", FileName), []byte(text), env)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"${KEY}": "${B}$$|\"\n[handler.x]||${A}|$${A}", "y": "\"\n[handler.x]"}
	if got := cfg.Handlers[0].Settings; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if _, err := Parse(filepath.Join("testdata", "good", FileName), []byte(text), nil); err == nil {
		t.Error("without an environment every variable is unset")
	}
}

func TestPos(t *testing.T) {
	cfg := parseGood(t, "version = 1\n[inbound.adt]\nmllp = { listen = \":1\" }\nhandlers = [\n  \"admit\",\n  \"two\",\n]\n"+
		"[handler]\nadmit.run = \"adt.py:admit\"\nadmit.to = [ ] # é\n[handler.two]\nto=[]\nrun='adt.py:admit'\nsettings = { \"é\" = 1, b = 2 }\n"+
		"[outbound.o.file]\ndir = \"out\"\n[outbound.o]\n")
	for path, want := range map[string]Pos{
		"":                        {1, 1},
		"version":                 {1, 11},
		"store/path":              {1, 1},
		"inbound/adt":             {2, 10},
		"inbound/adt/mllp":        {3, 8},
		"inbound/adt/mllp/listen": {3, 19},
		"inbound/adt/mllp/ack":    {3, 8},
		"inbound/adt/handlers":    {4, 12},
		"inbound/adt/handlers/1":  {6, 3},
		"inbound/adt/handlers/9":  {4, 12},
		"inbound/adt/handlers/x":  {4, 12},
		"handler/admit/run":       {9, 13},
		"handler/admit/to":        {10, 12},
		"handler/two":             {11, 10},
		"handler/two/run":         {13, 5},
		"handler/two/run/x":       {13, 5},
		"handler/two/settings/b":  {14, 27},
		"outbound":                {15, 2},
		"outbound/o":              {17, 11},
		"outbound/o/file":         {15, 13},
	} {
		if got := cfg.Pos(strings.Split(path, "/")...); got != want {
			t.Errorf("%q: got %s, want %s", path, got, want)
		}
	}
	err := cfg.Errorf([]string{"handler", "two", "run"}, "look again", "the worker does not offer %q", "two")
	want := cfg.File + ":13:5: the worker does not offer \"two\"\n  hint: look again"
	if err.Error() != want || err.Key != "handler.two.run" {
		t.Errorf("got %s", err)
	}
}

// TestLoad reads folders and refuses what is not a file that can be read. Red, for each, with its check in readFile or
// tree taken out.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("adt.py", "")
	write(FileName, good)
	write("other.toml", good)
	write("folder.toml/adt.py", "")
	write("folder.toml/"+FileName, good)
	write("full/adt.py", "")
	write("full/"+FileName, good+"#"+strings.Repeat("x", MaxFileSize-len(good)-1))
	write("large/"+FileName, good+"#"+strings.Repeat("x", MaxFileSize-len(good)))
	write("latin1/"+FileName, "# é\n# Gr\xf6\xdfe\n")
	if err := os.MkdirAll(filepath.Join(dir, "folder", FileName), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", FileName, "other.toml", "folder.toml", "full"} {
		if cfg, err := Load(filepath.Join(dir, name), testEnv); err != nil || !filepath.IsAbs(cfg.Dir) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"none":      filepath.Join(dir, "none", FileName) + ": there is no such file\n  hint: " + missingHint,
		"none.toml": filepath.Join(dir, "none.toml") + ": there is no such file\n  hint: " + missingHint,
		"adt.py":    filepath.Join(dir, "adt.py") + ": this is a file; name a folder",
		"folder":    filepath.Join(dir, "folder", FileName) + ": not a regular file\n  hint: " + initHint,
		"large":     filepath.Join(dir, "large", FileName) + ":1:1: the file is larger than 1MiB",
		"latin1":    filepath.Join(dir, "latin1", FileName) + ":2:5: the text is not UTF-8\n  hint: save the file as UTF-8",
	} {
		if _, err := Load(filepath.Join(dir, name), testEnv); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if _, err := Load(filepath.Join(dir, "none"), testEnv); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not ErrNotExist", err)
	}
	var each *Error
	if _, err := Load(filepath.Join(dir, "latin1"), testEnv); !errors.As(err, &each) || each.Line != 2 {
		t.Errorf("%v has no *Error in it", err)
	}
}

// TestLinkToFolder: by whatever links a folder is reached, Dir is the folder itself, and File what was asked for. Red
// without EvalSymlinks in Parse.
func TestLinkToFolder(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("missing: the privilege to make links")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	feed := filepath.Join(dir, "real", "feed")
	if err := os.MkdirAll(feed, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"adt.py": "", "shared": good} {
		if err := os.WriteFile(filepath.Join(feed, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link": "real", "feed": filepath.Join("link", "feed"), filepath.Join("real", "feed", FileName): "shared"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"feed", "feed/" + FileName, "link/feed", "link/feed/" + FileName, "real/feed"} {
		asked := filepath.Join(dir, filepath.FromSlash(name))
		file := asked
		if filepath.Base(asked) != FileName {
			file = filepath.Join(asked, FileName)
		}
		cfg, err := Load(asked, testEnv)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cfg.Dir != feed || cfg.File != file || cfg.Store.Path != filepath.Join(feed, "var", "coppice.db") {
			t.Errorf("%s: folder %s, file %s, store %s", name, cfg.Dir, cfg.File, cfg.Store.Path)
		}
	}
}

// TestLinkOutside: a handler's file may be a link, but not one that leads out of the folder. Red with os.Stat in place of
// the root's.
func TestLinkOutside(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("missing: the privilege to make links")
	}
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "adt.py")
	for _, file := range []string{outside, filepath.Join(dir, "real.py")} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target string) error {
		name := filepath.Join(dir, "adt.py")
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
		_, err := Parse(filepath.Join(dir, FileName), []byte(good), testEnv)
		return err
	}
	if err := link("real.py"); err != nil {
		t.Errorf("a link inside: %v", err)
	}
	if err := link(outside); err == nil || !strings.Contains(err.Error(), "cannot be used") {
		t.Errorf("a link outside: %v", err)
	}
}
