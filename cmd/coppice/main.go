// Command coppice runs a message pipeline whose handlers it need not trust. `coppice help` lists the verbs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	_ "coppice.dev/coppice/tree/shimhook" // on Linux the shim of a tree is this program, executed again
)

// The exit statuses of all verbs, as `coppice help exit` tells them.
const (
	exitOK      = 0
	exitProblem = 1   // the verb ran and found something wrong: a bad configuration, a message that was not taken
	exitUsage   = 2   // unknown verb or flag, missing argument
	exitSignal  = 128 // plus the signal's number: ended by Ctrl-C or TERM before the work was done
)

func main() {
	os.Exit(run(os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// stdio are the streams of a command.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// run runs one command to its end and returns its exit status.
func run(args []string, io stdio) int {
	ctx, ended := untilSignal()
	defer ended()
	root := rootCommand(io)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var status *statusError
	var sig *signalError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		if status.err != nil {
			fmt.Fprintln(io.err, "coppice:", status.err)
		}
		return status.code
	case errors.As(context.Cause(ctx), &sig):
		fmt.Fprintf(io.err, "coppice: ended by %v\n", sig.sig)
		return exitSignal + int(sig.sig)
	case cmd.Annotations[ran] == "":
		// Cobra's own: the verb has not begun.
		fmt.Fprintf(io.err, "coppice: %v\ntry: %s --help\n", err, cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintln(io.err, "coppice:", err)
	return exitProblem
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return "ended by " + e.sig.String() }

// untilSignal returns a context that HUP, INT or TERM ends. The second signal kills the program, as it would any other: its
// workers die with it.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		select {
		case sig := <-signals:
			signal.Stop(signals)
			n, _ := sig.(syscall.Signal)
			cancel(&signalError{n})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// statusError ends a verb with a status of its own. A nil err has been told already.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// told ends a verb whose problems have been printed.
func told() error { return &statusError{code: exitProblem} }

// usage is an error of how the verb was called, which the flags' own parser could not find.
func usage(format string, args ...any) error {
	return &statusError{exitUsage, fmt.Errorf(format, args...)}
}

// ran is the annotation of a command whose own code has begun.
const ran = "ran"

// verb finishes a command: from its first line on, an error is the verb's and not one of usage.
func verb(cmd *cobra.Command, body func(cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cmd.Annotations = map[string]string{ran: "yes"}
		return body(cmd, args)
	}
	return cmd
}
