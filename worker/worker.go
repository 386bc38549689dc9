// Package worker is the SDK for handlers written in Go. A worker is a program of its own that an engine starts:
//
//	func main() {
//		worker.Main(worker.Router("route", route), worker.Handler("admit", admit))
//	}
//
// The engine sends one message at a time. A function that returns an error or panics fails its message, and the
// worker lives on; a function that ends the process is a crash. What a function prints to stdout or stderr, with
// fmt.Println, package log or Message.Log, is captured, and coppice show has the last of it; the log has it with
// coppice serve --log-handler-output only. The protocol has descriptors of its own. The working folder is a scratch folder.
//
// Package worker/hl7, by Message.HL7, reads and changes HL7 v2 messages. Without an engine the same program calls one of its
// functions on a file: ./myworker run admit message.hl7 --set facility=WOOD. README.md shows a whole program.
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
Name it in coppice.toml (command = ["PROGRAM"]) and start it with: coppice serve
To call one of its functions by hand, add: run FUNCTION MESSAGE`

var errNotStarted = errors.New(notStarted)

// Main serves the functions to the engine that started this process, and does not return: when the engine closes its
// end, the process exits. It takes COPPICE_WIRE out of the environment and marks the descriptors of the wire
// close-on-exec, so that no program that a function starts holds them. Call it first thing in main.
//
// Without an engine, and with the arguments run FUNCTION MESSAGE, it calls one function on a file and prints what it answers; run -h
// tells more. The status is then 0, 1 when the function failed, or 2 for wrong usage.
func Main(functions ...Function) {
	os.Exit(run(os.Args[1:], os.Stderr, functions))
}

func run(args []string, stderr io.Writer, functions []Function) int {
	r, w, err := openWire()
	if errors.Is(err, errNotStarted) && len(args) > 0 && args[0] == "run" {
		return alone(args[1:], os.Stdin, os.Stdout, stderr, functions)
	}
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
		return nil, nil, errNotStarted
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
