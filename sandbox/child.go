package sandbox

import (
	"context"
	"io"
	"os"
	"slices"
	"time"

	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/tree"
)

// child is a worker's process as the state machine sees it: its tree, the engine's ends of its wire, and what it prints. It is
// *hosted in earnest. Tests have one in memory, so that every interleaving can be had in fake time.
type child interface {
	io.ReadWriter
	SetDeadline(time.Time) error
	CloseWrite() error

	Level() tree.Level
	Facts() tree.Facts
	Exited() <-chan struct{}
	Status() tree.Status
	Cut(cause string)
	Kill(ctx context.Context, cause string) (tree.Report, error)
	Usage() (tree.Usage, error)
	Members() ([]tree.Member, error)

	Pending() tree.Pending
	begin(message int64) tree.Pending // it is about to get a message; what lies in the wire before that
	printed() []Printed               // what it has printed since then
	tail() []string                   // the last lines that it printed
	whole() []string                  // the same, of one that has ended, once all is read
	let()                             // closes the engine's ends, once it is gone or given up
	clear() error                     // removes its scratch folder; it may take long
	folder() string
}

// starter starts a child. over is called, at any time and from any goroutine, when it prints more than it may.
type starter func(ctx context.Context, spec *Spec, over func(*LimitError)) (child, error)

// hosted is a child that the operating system runs.
type hosted struct {
	*tree.Tree
	*tree.Link
	*output
	scratch *confine.Folder
}

// host is the starter in earnest.
func host(ctx context.Context, spec *Spec, over func(*LimitError)) (_ child, err error) {
	h := &hosted{}
	if h.scratch, err = confine.Scratch(spec.Scratch, spec.Name); err != nil {
		return nil, err
	}
	if h.Link, err = tree.NewLink(); err != nil {
		h.scratch.Remove()
		return nil, err
	}
	h.output = newOutput(spec, over)
	h.Tree, err = h.start(ctx, spec)
	h.Link.Started()
	if err != nil {
		h.let()
		h.scratch.Remove()
		return nil, err
	}
	return h, nil
}

func (h *hosted) start(ctx context.Context, spec *Spec) (*tree.Tree, error) {
	stdout, stderr, err := h.output.open()
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	defer stderr.Close()
	limits := confine.Default()
	start := tree.Spec{
		Path: spec.Command[0], Args: spec.Command, Dir: h.scratch.Path, Stderr: stderr,
		Level: spec.Level, Rung: spec.Rung,
		NewSession: true, NoNewPrivileges: true, DropCapabilities: true,
		Limits: tree.Limits{NoCore: true, Files: limits.Files, Data: limits.Data, File: limits.File, Tasks: limits.Tasks},
	}
	env := slices.Clone(spec.Env)
	if wire := h.Link.Files(); spec.Exec {
		start.Stdin, start.Stdout = wire[0], wire[1]
	} else {
		start.Stdout, start.Extra = stdout, wire
		env = append(env, h.Link.Env())
	}
	start.Env = confine.Environment(os.Environ(), h.scratch.Path, env...)
	return tree.Start(ctx, start)
}

func (h *hosted) let() {
	h.Link.Close()
	h.output.finish()
}

func (h *hosted) begin(message int64) tree.Pending { return h.output.begin(message, h.Link.Look) }

func (h *hosted) printed() []Printed { return h.output.sinceBegin(h.Link.Look) }

func (h *hosted) clear() error   { return h.scratch.Remove() }
func (h *hosted) folder() string { return h.scratch.Path }
