// Command coppice runs a message pipeline whose handlers it need not trust. `coppice help` lists the verbs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
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

// Those of run, which are timeout(1)'s.
const (
	exitDeadline     = 124 // the deadline ended the command
	exitOwn          = 125 // run itself could not do what it was asked to
	exitUnexecutable = 126
	exitNotFound     = 127
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
	return execute(ctx, rootCommand(io), args, io)
}

// execute is run with a context that ends when the program is told to.
func execute(ctx context.Context, root *cobra.Command, args []string, io stdio) int {
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	status := statusOf(ctx, cmd, err)
	switch {
	case status.err == nil:
	case status.code == exitUsage || status.usage:
		fmt.Fprintf(io.err, "coppice: %s\ntry: %s --help\n", strings.TrimSpace(status.err.Error()), cmd.CommandPath())
	default:
		fmt.Fprintln(io.err, "coppice:", printableError(status.err))
	}
	return status.code
}

// statusOf tells with which status and which words an error ends the program.
func statusOf(ctx context.Context, cmd *cobra.Command, err error) *statusError {
	var status *statusError
	var sig *signalError
	switch {
	case errors.As(err, &status):
		return status
	case errors.As(context.Cause(ctx), &sig):
		return &statusError{code: exitSignal + int(sig.sig), err: endedBy(err, sig)}
	case cmd.Annotations[ran] == "": // cobra's own: the verb has not begun
		return &statusError{code: exitUsage, err: err}
	}
	return &statusError{code: exitProblem, err: err}
}

// endedBy is what there is to say of a verb that a signal ended with err.
func endedBy(err error, sig *signalError) error {
	var own *signalError
	switch {
	case errors.As(err, &own):
		return err // and perhaps more than that
	case errors.Is(err, context.Canceled):
		return sig
	}
	return fmt.Errorf("%w\n%w", err, sig)
}

// outliveReaders keeps a verb that has work in hand alive when nobody reads what it prints any more. `coppice serve | tee`
// has to stop in order on Ctrl-C, which ends tee first. Other verbs end at once and quietly then, as programs do.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return "ended by " + e.sig.String() }

// untilSignal returns a context that HUP, INT or TERM ends. The second signal kills the program, as it would any other: its
// workers die with it.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if !signal.Ignored(sig) { // nohup's, or a script's background
			signal.Notify(signals, sig)
		}
	}
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
	code  int
	err   error
	usage bool // the verb was called wrongly, whatever the code
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
	return &statusError{code: exitUsage, err: fmt.Errorf(format, args...)}
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
