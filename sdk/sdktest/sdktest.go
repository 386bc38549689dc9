// Package sdktest plays the engine to a worker of an SDK, for the SDKs' tests.
package sdktest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"coppice.dev/coppice/wire"
)

// patience is how long a worker may take for all that a test asks of it.
const patience = 30 * time.Second

// Worker is a worker's process, started with pipes as descriptors 3 and 4. It is killed at the end of the test.
type Worker struct {
	Cmd      *exec.Cmd
	To, From *os.File     // the engine's ends of the wire
	Out, Err bytes.Buffer // what it prints; whole after Wait

	t *testing.T
}

// Start starts a worker. Descriptors and streams of cmd are set here.
func Start(t *testing.T, cmd *exec.Cmd) *Worker {
	t.Helper()
	w := &Worker{Cmd: cmd, t: t}
	cmd.Stdout, cmd.Stderr = &w.Out, &w.Err
	childReads, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, childWrites, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.To, w.From = to, from
	cmd.ExtraFiles = []*os.File{childReads, childWrites}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	childReads.Close()
	childWrites.Close()
	t.Cleanup(func() { to.Close(); from.Close(); cmd.Process.Kill(); cmd.Wait() })
	deadline := time.Now().Add(patience)
	if err := errors.Join(to.SetDeadline(deadline), from.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}
	return w
}

// Ask sends a message and reads the answer.
func (w *Worker) Ask(m wire.Message) wire.Message {
	w.t.Helper()
	f, err := wire.Encode(m, wire.DefaultCaps())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := f.WriteTo(w.To); err != nil {
		w.t.Fatal(err)
	}
	body, err := wire.ReadFrame(w.From, wire.DefaultCaps())
	if err != nil {
		w.t.Fatalf("%v; it printed %s", err, w.End())
	}
	answer, err := wire.Decode(body, wire.Worker, wire.DefaultCaps())
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

// End closes the engine's end of the wire, and returns all that the worker printed until its own.
func (w *Worker) End() string {
	w.t.Helper()
	w.To.Close()
	w.Wait()
	return w.Printed()
}

// Wait waits for the worker's end and returns its exit status; one that does not end is killed.
func (w *Worker) Wait() int {
	w.t.Helper()
	stop := time.AfterFunc(patience, func() { w.Cmd.Process.Kill() })
	defer stop.Stop()
	w.Cmd.Wait()
	return w.Cmd.ProcessState.ExitCode()
}

// Printed is what it wrote to stdout, and behind it what it wrote to stderr.
func (w *Worker) Printed() string { return w.Out.String() + w.Err.String() }

// Request is a request of message 7.
func Request(phase wire.Phase, name, body string) *wire.Request {
	return &wire.Request{Binding: wire.Binding{ID: "5f3a9c0e1b2d4c6f8091a2b3c4d5e6f7", Phase: phase, Name: name}, Message: 7,
		Inbound: "adt", Received: "2026-01-02T03:04:05Z", Attempt: 1, Timeout: 60000, Body: []byte(body)}
}

// Touch opens the files that a suite in another language depends on: go test repeats a cached result unless a file that the test
// itself has opened is another one since.
func Touch(t *testing.T, folders ...string) {
	t.Helper()
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if entry.Type().IsRegular() {
				if _, err := os.ReadFile(filepath.Join(folder, entry.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Laid fails the test unless the files are in the folder as they are here, and nobody but their owner can read what is there.
func Laid(t *testing.T, files []string, folder string) {
	t.Helper()
	if len(files) == 0 {
		t.Fatal("no files")
	}
	for _, file := range files {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(folder, filepath.Base(file)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: written as %d bytes, want %d: %v", file, len(got), len(want), err)
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
