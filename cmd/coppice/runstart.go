package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"coppice.dev/coppice/tree"
)

// startCommand starts what execvp(3) would execute, and tells which file that was: each folder of PATH in turn, past files
// that may not be executed, and with /bin/sh a file that the kernel does not know how to execute.
func startCommand(ctx context.Context, spec tree.Spec) (*tree.Tree, string, error) {
	candidates, err := candidates(spec.Args[0], spec.Env)
	if err != nil {
		return nil, "", err
	}
	var denied error
	for _, path := range candidates {
		t, err := startFile(ctx, spec, path)
		switch {
		case err == nil:
			return t, path, nil
		case errors.Is(err, syscall.EACCES) && isPathError(err):
			denied = err // perhaps a later one may be
		case errors.Is(err, fs.ErrNotExist) && len(candidates) > 1:
		default:
			return nil, path, err
		}
	}
	if denied != nil {
		return nil, "", denied
	}
	return nil, "", notFound(spec.Args[0])
}

// startFile starts one file.
func startFile(ctx context.Context, spec tree.Spec, path string) (*tree.Tree, error) {
	spec.Path = path
	t, err := tree.Start(ctx, spec)
	if !errors.Is(err, syscall.ENOEXEC) || runtime.GOOS == "windows" {
		return t, err
	}
	const shell = "/bin/sh"
	spec.Path, spec.Args = shell, append([]string{shell, path}, spec.Args[1:]...)
	return tree.Start(ctx, spec)
}

// candidates are the files that a command's name may mean, in order. The PATH is the command's own; one that has none is
// looked for in the caller's.
func candidates(name string, env []string) ([]string, error) {
	if runtime.GOOS == "windows" {
		path, err := exec.LookPath(name)
		if err != nil && !errors.Is(err, exec.ErrDot) { // the caller's folder is part of the search here
			return nil, &os.PathError{Op: "find", Path: name, Err: fs.ErrNotExist}
		}
		return []string{path}, nil
	}
	if name == "" {
		return nil, notFound(name)
	}
	if strings.Contains(name, "/") {
		return []string{name}, nil
	}
	path, ok := lookEnv(env, "PATH")
	if !ok {
		if path, ok = os.LookupEnv("PATH"); !ok {
			path = "/bin:/usr/bin" // as the C library's execvp
		}
	}
	var out []string
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "."
		}
		// Not filepath.Join, which would make a bare name of ./name.
		file := strings.TrimSuffix(dir, "/") + "/" + name
		if _, err := os.Stat(file); err == nil || errors.Is(err, fs.ErrPermission) {
			out = append(out, file)
		}
	}
	if len(out) == 0 {
		return nil, notFound(name)
	}
	return out, nil
}

func notFound(name string) error { return &os.PathError{Op: "exec", Path: name, Err: syscall.ENOENT} }

func lookEnv(env []string, name string) (value string, ok bool) {
	for _, entry := range env {
		if v, found := strings.CutPrefix(entry, name+"="); found {
			return v, true
		}
	}
	return "", false
}

// isPathError says whether it was the command's file that could not be executed: Start tells of that alone in this form.
func isPathError(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path)
}

// failedStart is how run ends when nothing of the command has run.
func failedStart(err error) runEnd {
	var sig *signalError
	var level *tree.LevelError
	switch {
	case errors.As(err, &sig):
		return runEnd{code: exitSignal + int(sig.sig), die: sig.sig, err: sig}
	case errors.As(err, &level):
		if i := slices.IndexFunc(level.Tried, func(t tree.Tried) bool { return noDescriptors(t.Err) }); i >= 0 {
			return runEnd{code: exitOwn, err: fmt.Errorf("run itself has too few descriptors: %w", level.Tried[i].Err)}
		}
		return runEnd{code: exitOwn, err: notToBeHad(level)}
	case noDescriptors(err):
		return runEnd{code: exitOwn, err: fmt.Errorf("run itself has too few descriptors: %w", err)}
	case isPathError(err) && errors.Is(err, fs.ErrNotExist):
		return runEnd{code: exitNotFound, err: unpathed(err)}
	case isPathError(err):
		return runEnd{code: exitUnexecutable, err: unpathed(err)}
	}
	return runEnd{code: exitOwn, err: err}
}

func noDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// unpathed says what is wrong with the command in the words of a shell.
func unpathed(err error) error {
	var path *fs.PathError
	errors.As(err, &path)
	says := path.Err.Error()
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(path.Path); err == nil {
			says = "what it is to be executed by (its #! line, its loader) does not exist"
		} else if filepath.Base(path.Path) == path.Path {
			says = "command not found"
		}
	}
	return &runError{says: "cannot run " + shellName(path.Path) + ": " + says, err: err}
}

// notToBeHad tells each rung's reason on a line of its own.
func notToBeHad(level *tree.LevelError) error {
	if len(level.Tried) == 1 && level.Tried[0].Err == nil { // the flags contradict each other
		return &runError{says: fmt.Sprintf("rung %s cannot give level %s: %s", level.Rung, level.Wanted, level.Tried[0].Reason), err: level}
	}
	says := "level " + level.Wanted.String() + " is not to be had here"
	if level.Rung != "" {
		says = "rung " + level.Rung + " is not to be had here"
	}
	for _, t := range level.Tried {
		says += "\n  " + t.Rung + ": " + t.Reason
	}
	return &runError{says: says + "\n  hint: nothing was executed; `coppice doctor` tells what would lift that", err: level}
}

// runError has words of its own for an error.
type runError struct {
	says string
	err  error
}

func (e *runError) Error() string { return e.says }
func (e *runError) Unwrap() error { return e.err }
