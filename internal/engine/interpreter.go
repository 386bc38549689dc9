package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/sdk/node"
	"coppice.dev/coppice/sdk/python"
)

// language is one whose functions an interpreter runs, by an SDK that the engine brings along.
type language struct {
	name, least string // for people: the language, and the oldest version that will do
	key, usual  string // of the interpreter: its key in [sandbox], and what it is usually called
	program     func(config.Sandbox) string
	// ask makes an interpreter tell, in a line each, its real path, its version, and "yes" if that will do: the name on the PATH
	// may be a version manager's script, which costs each start 100 ms more.
	ask   []string
	flags []string
	// install writes the SDK anew, since a worker of the engine before may have changed it, and returns its program.
	install func(*building) (string, error)
}

var pythonLanguage = language{
	name: "Python", least: "3.9", key: "python", usual: "python3",
	program: func(s config.Sandbox) string { return s.Python },
	ask: []string{"-I", "-B", "-c",
		`import sys; print(sys.executable); print("%d.%d" % sys.version_info[:2]); print("yes" if sys.version_info >= (3, 9) else "no")`},
	// -I: neither the environment nor the user's own site folder changes what is imported; -B: no byte code is written into
	// the snapshot.
	flags: []string{"-I", "-B"},
	install: func(b *building) (string, error) {
		folder := b.o.sdk
		if confine.Clear(folder) != nil {
			folder += "-" + rand.Text()
		}
		if err := confine.FolderAt(folder); err != nil {
			return "", err
		}
		return python.WriteTo(folder)
	},
}

var nodeLanguage = language{
	name: "Node", least: "18", key: "node", usual: "node",
	program: func(s config.Sandbox) string { return s.Node },
	ask: []string{"-e",
		`const v = process.versions.node; console.log(process.execPath + "\n" + v + "\n" + (parseInt(v) >= 18 ? "yes" : "no"))`},
	// V8 takes its limit from the host's memory, 4 GiB here, and not from confine.Limits.Data: with 2 GiB of that, a leak ended
	// as SIGSEGV (20), SIGTRAP (18), or in collecting garbage without end (22). With this it ends as "heap out of memory", and a
	// quarter of the limit is left for bodies, which are not on that heap, and for stacks.
	flags: []string{"--max-old-space-size=1536"},
	// Among the modules of the snapshot, in the place of a copy that npm has put there: that is where Node looks, in every
	// version, and in the threads and programs that a handler starts.
	install: func(b *building) (string, error) {
		modules := filepath.Join(b.code.Dir, "node_modules")
		if err := confine.Clear(filepath.Join(modules, node.Name)); err != nil {
			return "", err
		}
		return node.WriteTo(modules)
	},
}

// languageOf tells by a file's name what it is written in; config lets no other names through.
func languageOf(file string) language {
	if path.Ext(file) == ".py" {
		return pythonLanguage
	}
	return nodeLanguage
}

// errTold is the error of an interpreter whose lack has been reported.
var errTold = errors.New("there is no interpreter")

// interpreter is the command that starts a worker for files of the language.
func (b *building) interpreter(ctx context.Context, l language) ([]string, error) {
	command, looked := b.found[l.name]
	if command != nil {
		return command, nil
	}
	if looked {
		return nil, errTold
	}
	b.found[l.name] = nil
	real, err := b.real(ctx, l)
	if err != nil {
		return nil, err
	}
	program, err := l.install(b)
	if err != nil {
		return nil, err
	}
	b.found[l.name] = append(append([]string{real}, l.flags...), program)
	return b.found[l.name], nil
}

// real finds the interpreter itself, and asks it for its version.
func (b *building) real(ctx context.Context, l language) (string, error) {
	place := []string{"sandbox", l.key}
	name := l.program(b.cfg.Sandbox)
	hint := fmt.Sprintf(`set %s = "/path/to/%s" in [sandbox], or install %s %s or later`, l.key, l.usual, l.name, l.least)
	found, err := exec.LookPath(name)
	if err != nil {
		return "", b.cfg.Errorf(place, hint, "handlers in %s need an interpreter, and there is no %q", l.name, cmp.Or(b.cfg.Written(place...), name))
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Sandbox.StartTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, found, l.ask...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	lines := strings.Split(strings.ReplaceAll(strings.TrimSpace(string(out)), "\r\n", "\n"), "\n")
	switch {
	case err != nil:
		return "", b.cfg.Errorf(place, hint, "the interpreter cannot be run: %v", told(b.cfg, place, err))
	case len(lines) != 3:
		return "", b.cfg.Errorf(place, hint, "the program does not answer like a %s interpreter", l.name)
	case lines[2] != "yes":
		return "", b.cfg.Errorf(place, hint, "the interpreter is %s %s, and handlers need %s or later", l.name, lines[1], l.least)
	}
	return lines[0], nil
}
