// Package worker is the SDK for handlers written in Go. A worker is a program of its own that an engine starts:
//
//	func main() {
//		worker.Main(worker.Router("route", route), worker.Handler("admit", admit))
//	}
//
// The engine sends one message at a time. A function that returns an error or panics fails its message, and the
// worker lives on; a function that ends the process is a crash. What a function prints to stdout or stderr, with
// fmt.Println or package log, is captured, and shown with coppice serve --log-handler-output only: the protocol has
// descriptors of its own. The working folder is a scratch folder.
//
// The package imports the standard library and package wire alone.
package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"

	"coppice.dev/coppice/wire"
)

// The statuses with which Main ends the process.
const (
	ExitOK        = 0  // the engine closed its end
	ExitLost      = 1  // the wire broke, or the engine asked for a function that is not there
	ExitViolation = 70 // the engine broke the protocol
	ExitNoEngine  = 78 // the program was not started by an engine
)

const notStarted = `this program is a Coppice worker: an engine starts it and sets COPPICE_WIRE.
Name it in coppice.toml (command = ["./admit"]) and start it with: coppice serve`

// Main serves the functions to the engine that started this process, and does not return: when the engine closes its
// end, the process exits. It takes COPPICE_WIRE out of the environment and marks the descriptors of the wire
// close-on-exec, so that no program that a function starts holds them. Call it first thing in main.
func Main(functions ...Function) {
	os.Exit(run(os.Stderr, functions))
}

func run(stderr io.Writer, functions []Function) int {
	r, w, err := openWire()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return ExitNoEngine
	}
	err = Serve(context.Background(), r, w, functions...)
	var v *wire.Violation
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &v):
		fmt.Fprintln(stderr, "worker: by the engine:", err)
		return ExitViolation
	}
	fmt.Fprintln(stderr, "worker:", err)
	return ExitLost
}

var wirePattern = regexp.MustCompile(`^(0|[1-9][0-9]{0,18}),(0|[1-9][0-9]{0,18})$`)

// openWire takes the two descriptors that the environment names.
func openWire() (r, w *os.File, err error) {
	value, ok := os.LookupEnv("COPPICE_WIRE")
	if !ok {
		return nil, nil, errors.New(notStarted)
	}
	if err := os.Unsetenv("COPPICE_WIRE"); err != nil {
		return nil, nil, fmt.Errorf("worker: %w", err)
	}
	found := wirePattern.FindStringSubmatch(value)
	if found == nil {
		return nil, nil, errors.New("worker: COPPICE_WIRE is not two numbers with a comma between")
	}
	if r, err = openDescriptor(found[1], "wire from the engine"); err != nil {
		return nil, nil, err
	}
	w, err = openDescriptor(found[2], "wire to the engine")
	return r, w, err
}

func openDescriptor(number, name string) (*os.File, error) {
	n, err := strconv.ParseUint(number, 10, strconv.IntSize-1)
	if err != nil {
		return nil, fmt.Errorf("worker: COPPICE_WIRE: %w", err)
	}
	if err := notInherited(uintptr(n)); err != nil {
		return nil, fmt.Errorf("worker: COPPICE_WIRE names descriptor %d: %w", n, err)
	}
	f := os.NewFile(uintptr(n), name)
	if f == nil {
		return nil, fmt.Errorf("worker: COPPICE_WIRE names descriptor %d: %w", n, os.ErrInvalid)
	}
	if _, err := f.Stat(); err != nil {
		return nil, fmt.Errorf("worker: COPPICE_WIRE names descriptor %d: %w", n, err)
	}
	return f, nil
}
