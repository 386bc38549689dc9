package worker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"coppice.dev/coppice/wire"
	"coppice.dev/coppice/worker/hl7"
)

// The statuses of a program that calls one function alone.
const (
	exitFailed = 1
	exitUsage  = 2
)

// order is what the arguments of run ask for.
type order struct {
	function, message string
	settings          map[string]any
	timeout           time.Duration
}

// alone calls one function on one file, without an engine, and prints what it would send, in the words of the Python SDK's alone.py.
func alone(args []string, stdin io.Reader, stdout, stderr io.Writer, functions []Function) int {
	o, err := parseOrder(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return ExitOK
	}
	if err != nil {
		return exitUsage
	}
	answer, err := o.call(stdin, functions)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	switch answer := answer.(type) {
	case *wire.Result:
		show(stdout, answer)
		return ExitOK
	case *wire.Fail:
		fmt.Fprintf(stderr, "%s: %s\n%s", answer.Fault.Type, answer.Fault.Text, answer.Fault.Traceback)
	}
	return exitFailed
}

// parseOrder reads the arguments; options may stand before, between and behind the two others. What is wrong it prints.
func parseOrder(args []string, stderr io.Writer) (order, error) {
	o := order{settings: map[string]any{}}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, "usage: run FUNCTION MESSAGE [--set NAME=VALUE]... [--timeout SECONDS]\n"+
			"Calls one function on one file, or on stdin for -, and prints what it answers.\n")
		flags.PrintDefaults()
	}
	flags.Func("set", "a setting, as `NAME=VALUE`; its value is text", func(s string) error {
		name, value, _ := strings.Cut(s, "=")
		o.settings[name] = value
		return nil
	})
	seconds := flags.Float64("timeout", 60, "`SECONDS` until the context ends")
	var named []string
	for rest := args; ; {
		if err := flags.Parse(rest); err != nil {
			return o, err
		}
		if flags.NArg() == 0 {
			break
		}
		named, rest = append(named, flags.Arg(0)), flags.Args()[1:]
	}
	if len(named) != 2 {
		flags.Usage()
		return o, errors.New("run takes a function and a message")
	}
	o.function, o.message = named[0], named[1]
	o.timeout = time.Duration(*seconds * float64(time.Second))
	return o, nil
}

// call calls the function. The error says why it could not be called.
func (o order) call(stdin io.Reader, functions []Function) (wire.Message, error) {
	s := &server{functions: map[wire.Offer]Function{}, settings: o.settings}
	ready := &wire.Ready{}
	if text := s.add(functions, ready); text != "" {
		return nil, errors.New(text)
	}
	asked := wire.Offer{Phase: wire.PhaseHandle, Name: o.function}
	if _, ok := s.functions[asked]; !ok {
		asked.Phase = wire.PhaseRoute
	}
	if _, ok := s.functions[asked]; !ok {
		asked.Phase = wire.PhaseHandle
		return nil, errors.New(s.lacks([]wire.Offer{asked}, ready.Offers))
	}
	body, err := o.read(stdin)
	if err != nil {
		return nil, err
	}
	kind, control := header(body)
	return s.call(context.Background(), &wire.Request{Binding: wire.Binding{Phase: asked.Phase, Name: o.function}, Message: 1, Inbound: "alone",
		MsgType: kind, Control: control, Received: time.Now().UTC().Format(time.RFC3339), Attempt: 1, Timeout: o.timeout.Milliseconds(), Body: body}), nil
}

func (o order) read(stdin io.Reader) ([]byte, error) {
	if o.message == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(o.message)
}

// header returns what an engine tells of MSH: type and trigger of MSH-9, and MSH-10. Both are empty where the body is not HL7.
func header(body []byte) (kind, control string) {
	h, err := hl7.Parse(body)
	if err != nil {
		return "", ""
	}
	kind = h.Get("MSH-9.1")
	if trigger := h.Get("MSH-9.2"); trigger != "" {
		kind += "^" + trigger
	}
	return kind, h.Get("MSH-10")
}

func show(w io.Writer, r *wire.Result) {
	switch {
	case r.Phase == wire.PhaseRoute && len(r.Handlers) == 0:
		fmt.Fprintln(w, "handlers: none")
	case r.Phase == wire.PhaseRoute:
		fmt.Fprintln(w, "handlers:", strings.Join(r.Handlers, ", "))
	case r.Dropped:
		fmt.Fprintln(w, "drop:", r.Drop)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Tags)) {
		fmt.Fprintf(w, "tag: %s=%s\n", name, r.Tags[name])
	}
	if r.Phase == wire.PhaseHandle && !r.Dropped && len(r.Sends) == 0 {
		fmt.Fprintln(w, "sends nothing")
	}
	for _, s := range r.Sends {
		fmt.Fprintf(w, "send to %s, %d bytes:\n%s\n", s.To, len(s.Body), readable(s.Body))
	}
}

// readable is a body with a line for each segment, and with what is not UTF-8 as \x and its number.
func readable(body []byte) string {
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(body))
	var b strings.Builder
	for i, c := range strings.TrimRight(text, "\n") {
		if _, size := utf8.DecodeRuneInString(text[i:]); c == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, text[i])
			continue
		}
		b.WriteRune(c)
	}
	return b.String()
}
