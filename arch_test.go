// Package coppice_test holds the rules of the house: who may import whom, and where the operating system may be touched.
package coppice_test

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "coppice.dev/coppice/"

// systems are those for which the project is built; a rule that a file of one system breaks is broken.
var systems = []string{"linux", "windows", "darwin", "freebsd", "openbsd"}

// layers is the order of the house, top first: a package imports from layers below its own, and from its own subtree. The
// packages of one line are neighbours that do not know each other.
var layers = [][]string{
	{"cmd/coppice", "internal/victim/torture"},
	{"internal/console", "internal/doctor"},
	{"internal/engine"},
	{"internal/flight", "internal/control", "internal/cases", "internal/bodydiff"},
	{"internal/pipeline", "internal/store", "internal/connect", "internal/config", "sandbox"},
	{"tree", "internal/confine", "internal/victim/observer"},
	{"internal/cgroup"},
	{"internal/shim"},
	{"worker", "sdk/python", "sdk/node"},
	{"sdk/sdktest"},
	{"sdk"},
	{"internal/victim"},
	{"internal/message", "internal/room", "internal/hl7", "internal/synth", "internal/tty"},
	{"wire"},
	{"protocol/vectors"},
}

// rule forbids imports to a package and its subtree.
type rule struct {
	pkg       string
	forbidden func(path string) bool
	why       string
}

var rules = []rule{
	{"wire", anyOf("."), "wire imports the standard library alone: SDKs and tools take it without taking us"},
	{"worker", except("coppice.dev/coppice/wire"), "worker imports the standard library and wire alone: it is inside every Go handler"},
	{"internal/message", anyOf("."), "the pipeline's words stand below all that use them"},
	{"internal/hl7", anyOf("."), "reading a header needs nothing"},
	{"internal/room", anyOf("."), "counting bytes needs nothing"},
	{"internal/pipeline", except("coppice.dev/coppice/internal/message"),
		"the pipeline declares what it needs and is tested with fakes and fake time"},
	{"internal/shim", func(p string) bool {
		return strings.Contains(p, ".") && !strings.HasPrefix(p, "coppice.dev/coppice/internal/shim/") || p == "os" || p == "fmt" || p == "encoding/json" || p == "time"
	}, "the shim's init runs in every program that has the hook, before anything else of it; behind a package of golang.org/x it would be late"},
	{"tree/shimhook", except("coppice.dev/coppice/internal/shim"), "as the shim"},
	{"tree", anyOf("os/signal", "os/exec", "coppice.dev/coppice/wire"), "a library takes no process-wide act, and owns its pipes"},
	{"sandbox", anyOf("os/signal", "os/exec", "syscall", "golang.org/x/sys"), "the operating system is package tree's"},
	{"internal/store", anyOf("coppice.dev/coppice/internal/config", "coppice.dev/coppice/internal/pipeline"), "a store knows messages alone"},
	{"internal/connect", anyOf("coppice.dev/coppice/internal/store", "coppice.dev/coppice/internal/pipeline", "coppice.dev/coppice/internal/config"),
		"a connection knows its sink alone"},
	{"internal/connect/mllp", anyOf("coppice.dev/coppice/internal/connect/http", "coppice.dev/coppice/internal/connect/file"), "transports do not know each other"},
	{"internal/connect/http", anyOf("coppice.dev/coppice/internal/connect/mllp", "coppice.dev/coppice/internal/connect/file"), "transports do not know each other"},
	{"internal/connect/file", anyOf("net", "crypto/tls", "coppice.dev/coppice/internal/connect/gate", "coppice.dev/coppice/internal/connect/secure"),
		"files come by no network"},
}

// systemCalls are the packages in which files may be for one system, or import golang.org/x/sys.
var systemCalls = []string{
	"tree", "internal/confine", "internal/cgroup", "internal/shim", "internal/shim/early", "internal/shim/sys", // what they are for
	"internal/store/sqlite",                               // file locking
	"internal/control",                                    // who is at the other end of a socket
	"worker",                                              // close-on-exec of the wire
	"internal/tty",                                        // whose group has the terminal; stopping and dying as a shell expects
	"internal/victim",                                     // programs that misbehave, for tests and the demonstration
	"internal/victim/observer", "internal/victim/torture", // what becomes of them, seen from outside
}

// signals are the packages that may handle signals: the programs, and the victims that are deaf to them.
var signals = []string{"cmd/coppice", "internal/victim", "internal/victim/torture"}

// anyOf matches the given import paths and their subtrees; "." is everything outside of the standard library.
func anyOf(paths ...string) func(string) bool {
	return func(p string) bool {
		for _, f := range paths {
			if f == "." && strings.Contains(p, ".") || p == f || strings.HasPrefix(p, f+"/") {
				return true
			}
		}
		return false
	}
}

// except matches everything outside of the standard library but the given paths.
func except(paths ...string) func(string) bool {
	return func(p string) bool { return strings.Contains(p, ".") && !slices.Contains(paths, p) }
}

func within(pkg, parent string) bool { return pkg == parent || strings.HasPrefix(pkg, parent+"/") }

func layerOf(pkg string) (int, string) {
	for i, layer := range layers {
		for _, top := range layer {
			if within(pkg, top) {
				return i, top
			}
		}
	}
	return -1, ""
}

// packages returns what go/build makes of each folder with Go files, for one system.
func packages(t *testing.T, goos string) map[string]*build.Package {
	ctx := build.Default
	ctx.GOOS, ctx.GOARCH, ctx.CgoEnabled = goos, "amd64", false
	out := map[string]*build.Package{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); name != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bench") {
			return fs.SkipDir
		}
		p, err := ctx.ImportDir(path, 0)
		if err == nil && len(p.GoFiles) > 0 {
			out[filepath.ToSlash(path)] = p
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLayers was seen red with an import of internal/engine in internal/pipeline, and with one of internal/store/sqlite in
// internal/connect/mllp.
func TestLayers(t *testing.T) {
	for _, goos := range systems {
		for pkg, p := range packages(t, goos) {
			own, top := layerOf(pkg)
			if own < 0 {
				t.Errorf("%s is in no layer: say in arch_test.go where it stands", pkg)
				continue
			}
			for _, imp := range p.Imports {
				other, ok := strings.CutPrefix(imp, module)
				if !ok {
					continue
				}
				if layer, otherTop := layerOf(other); layer <= own && otherTop != top {
					t.Errorf("%s (%s) imports %s, which is not below it", pkg, goos, other)
				}
			}
		}
	}
}

// TestRules was seen red with os imported in internal/shim, and with log/slog's neighbour x/sys imported in sandbox.
func TestRules(t *testing.T) {
	for _, goos := range systems {
		for pkg, p := range packages(t, goos) {
			for _, imp := range p.Imports {
				for _, r := range rules {
					own := strings.HasPrefix(imp, module) && within(strings.TrimPrefix(imp, module), r.pkg)
					if within(pkg, r.pkg) && !own && r.forbidden(imp) && !(r.pkg == "tree" && pkg == "tree/shimhook") {
						t.Errorf("%s (%s) imports %s: %s", pkg, goos, imp, r.why)
					}
				}
				if imp == "os/signal" && !slices.Contains(signals, pkg) {
					t.Errorf("%s (%s) imports os/signal, which is the program's alone", pkg, goos)
				}
				if strings.HasPrefix(imp, "golang.org/x/sys") && !slices.Contains(systemCalls, pkg) {
					t.Errorf("%s (%s) imports %s: system calls have their own packages", pkg, goos, imp)
				}
			}
		}
	}
}

// TestSystemFiles: a file that only some systems build is one that touches the operating system.
func TestSystemFiles(t *testing.T) {
	seen := map[string]map[string]int{} // package -> file -> systems that build it
	for _, goos := range systems {
		for pkg, p := range packages(t, goos) {
			if seen[pkg] == nil {
				seen[pkg] = map[string]int{}
			}
			for _, f := range p.GoFiles {
				seen[pkg][f]++
			}
		}
	}
	for pkg, files := range seen {
		for f, n := range files {
			if n != len(systems) && !slices.Contains(systemCalls, pkg) {
				t.Errorf("%s/%s is for some systems only", pkg, f)
			}
		}
	}
}

// TestStateMachine: the protocol's state machine in package sandbox never touches the operating system.
func TestStateMachine(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "sandbox/exchange.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, imp := range f.Imports {
		switch strings.Trim(imp.Path.Value, `"`) {
		case "syscall", "os/exec", "net", "coppice.dev/coppice/internal/confine":
			t.Errorf("sandbox/exchange.go imports %s", imp.Path.Value)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			// The names of errors are all that it may take from there.
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" && !strings.HasPrefix(s.Sel.Name, "Err") {
				t.Errorf("sandbox/exchange.go uses os.%s", s.Sel.Name)
			}
		}
		return true
	})
}

// TestNames: a package is named for what it is about.
func TestNames(t *testing.T) {
	for pkg, p := range packages(t, "linux") {
		switch p.Name {
		case "util", "utils", "common", "helper", "helpers", "manager", "base", "misc":
			t.Errorf("%s: a package named %s could hold anything", pkg, p.Name)
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", pkg)
		}
	}
}
