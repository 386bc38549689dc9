package confine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// probe finds out, by doing it, whether the host gives one feature.
type probe struct {
	name string
	// here looks without a child; those below are then nil.
	here func() (string, error)
	// prepare says how the child is to be born; nil is like any other.
	prepare func() (*trial, error)
	// child is what the child does, on a thread that it may spoil, and returns what it saw.
	child func() (string, error)
}

// trial is one go at a feature.
type trial struct {
	attr *syscall.SysProcAttr
	look func() (string, error) // from outside, while the child lives; may be nil
	undo func() error           // after the child's end; may be nil
}

// probeLife bounds a probe's child, should nobody else end it; probeOutput what is read of its finding, in bytes.
const (
	probeLife   = 30 * time.Second
	probeOutput = 4096
)

// finding is the child's answer, one line of JSON.
type finding struct {
	Detail  string
	Errno   uintptr // of the step that was refused; 0 if that has none
	Refused string  // what was refused, or in which way it did not hold; empty if the feature works
}

// Probes lists the features that Probe knows on this system.
func Probes() []string {
	var out []string
	for _, p := range probes() {
		out = append(out, p.name)
	}
	return out
}

// Probe finds out whether this process can have the named feature, by having it: mostly in a child, which is the
// program argv[0] at path with arguments that make it call ProbeChild with the same name. It returns in words what was
// seen. The error tells which step was refused and wraps its errno; for a name that this system does not know it is
// errors.ErrUnsupported. Nothing is left behind: not the child, no file, no cgroup. ctx bounds all of it.
func Probe(ctx context.Context, name, path string, argv []string) (string, error) {
	p, ok := find(name)
	if !ok {
		return "", fmt.Errorf("probe %q: %w", name, errors.ErrUnsupported)
	}
	if p.here != nil {
		return p.here()
	}
	t := &trial{}
	if p.prepare != nil {
		var err error
		if t, err = p.prepare(); err != nil {
			return "", err
		}
	}
	detail, err := t.run(ctx, path, argv)
	if t.undo != nil {
		err = errors.Join(err, t.undo())
	}
	return detail, err
}

// ProbeChild is the child's part of Probe. It writes the finding and waits for the end of in.
func ProbeChild(name string, in io.Reader, out io.Writer) error {
	time.AfterFunc(probeLife, func() { os.Exit(1) })
	p, ok := find(name)
	if !ok || p.child == nil {
		return fmt.Errorf("probe %q: %w", name, errors.ErrUnsupported)
	}
	var f finding
	var err error
	if f.Detail, err = p.child(); err != nil {
		f.Refused = err.Error()
		var errno syscall.Errno
		if errors.As(err, &errno) {
			f.Errno = uintptr(errno)
			f.Refused = strings.TrimSuffix(f.Refused, ": "+errno.Error())
		}
	}
	if err := json.NewEncoder(out).Encode(f); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

func find(name string) (probe, bool) {
	for _, p := range probes() {
		if p.name == name {
			return p, true
		}
	}
	return probe{}, false
}

// run has one child and sees it to its end.
func (t *trial) run(ctx context.Context, path string, argv []string) (string, error) {
	cmd := exec.CommandContext(ctx, path)
	cmd.Args, cmd.SysProcAttr, cmd.WaitDelay = argv, t.attr, time.Second
	hold, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", born(err)
	}
	detail, err := hear(out)
	if err == nil && t.look != nil {
		var more string
		more, err = t.look()
		detail += more
	}
	hold.Close()
	ended := cmd.Wait() // its status says nothing: the look may have killed it
	if ctx.Err() != nil {
		return "", errors.Join(context.Cause(ctx), err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) && ended != nil {
		err = fmt.Errorf("the child says nothing: %w", ended)
	}
	return detail, err
}

// born strips the error of a start of the path, which is this program's own.
func born(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("start a child: %w", errno)
	}
	return err
}

// hear reads a child's finding.
func hear(out io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(out, probeOutput)).ReadBytes('\n')
	if err != nil {
		return "", io.ErrUnexpectedEOF
	}
	var f finding
	switch err := json.Unmarshal(line, &f); {
	case err != nil:
		return "", err
	case f.Errno != 0:
		return "", fmt.Errorf("%s: %w", f.Refused, syscall.Errno(f.Errno))
	case f.Refused != "":
		return "", errors.New(f.Refused)
	}
	return f.Detail, nil
}
