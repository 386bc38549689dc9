package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/tty"
	"coppice.dev/coppice/tree"
)

// defaultGrace is how long a command has between being asked to end and the cut.
const defaultGrace = 2 * time.Second

const aboutRun = `Run is timeout(1) that leaves nothing behind: it runs CMD with the caller's environment, folder, streams and terminal, and
when CMD ends, or its deadline passes, every process that was born of it is dead, whatever it did to get away. What CMD left
behind is cut and named in one line on stderr.

  coppice run --deadline 10s -- make test
  coppice run --level atomic -- ./untrusted         refuse a host that cannot promise it
  coppice run --report - -- sh -c 'sleep 60 & exit' see what was left behind, and what held it

Options stand before CMD; everything from CMD on is CMD's own. A duration is written as 90s, 1m30s, or as a number of seconds.

At the deadline the command's process group gets TERM, and after --grace the whole tree is cut. HUP, INT, QUIT and TERM are
handed on to the command, and the cut follows after --grace; a second one cuts at once. Keys at the terminal go to the command
alone, which may do with them what it likes; ^Z stops it and run, and fg lets both go on (the deadline is then checked
again: while run itself is stopped it cuts nobody). The terminal's modes are put back at the end.

Exit statuses:
  the command's own  it ended by itself, or as it was asked to
  124                the deadline ended it
  125                run itself failed: wrong usage, a level that is not to be had, a tree that was not proved gone
  126, 127           CMD cannot be executed; there is no CMD
  128 + a signal     CMD died of that signal, or was cut because of it; run then dies of it, too`

// runOptions are the flags of run.
type runOptions struct {
	deadline, grace duration
	level, rung     string
	env, pass       []string
	clean           bool
	isolated        bool
	noNewPrivs      bool
	limits          limits
	report          string
	quiet           bool
}

func runCommand(io stdio) *cobra.Command {
	o := &runOptions{grace: duration(defaultGrace)}
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD ARG...",
		Short: "Run a command and leave nothing of it behind",
		Long:  aboutRun,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return wrongRun("run needs a command, as in: coppice run --deadline 10s -- make test")
			}
			return nil
		},
		DisableFlagsInUseLine: true,
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows CMD is CMD's
	f.Var(&o.deadline, "deadline", "end the command after `DUR`; 0 is never")
	f.Var(&o.grace, "grace", "cut `DUR` after the command was asked to end; 0 cuts without asking")
	f.StringVar(&o.level, "level", "", "refuse to run below `LEVEL`: direct, group, tracked or atomic")
	f.StringVar(&o.rung, "rung", "", "hold the tree by this `RUNG` alone: one of "+strings.Join(tree.Rungs(), ", "))
	f.StringArrayVar(&o.env, "env", nil, "set `NAME=VALUE` in the command's environment; may be repeated")
	f.BoolVar(&o.clean, "clean-env", false, "begin with an empty environment")
	f.StringArrayVar(&o.pass, "pass-env", nil, "with --clean-env, keep the caller's `NAME`; may be repeated")
	f.BoolVar(&o.isolated, "isolated", false, "give the command a session of its own, without the terminal")
	f.BoolVar(&o.noNewPrivs, "no-new-privs", false, "make set-user-id programs and file capabilities void (Linux)")
	f.Var(&o.limits, "limit", "set a limit for each process (Linux), `NAME=N`: files (open descriptors), data (bytes of memory), file (bytes of the largest file written), with K, M or G; or core=0. Never above the hard limit; may be repeated")
	f.StringVar(&o.report, "report", "", "write a report in JSON to `FILE`; - is stderr")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not tell what was cut")
	words(cmd, "level", "direct", "group", "tracked", "atomic")
	words(cmd, "rung", tree.Rungs()...)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrongRun("%w", err) })
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		for _, name := range []string{"level", "rung", "report"} {
			switch value := f.Lookup(name).Value.String(); {
			case f.Changed(name) && value == "": // a variable that is not set, most likely
				return wrongRun("--%s is empty", name)
			case value == "--":
				return wrongRun("--%s has no value: -- was taken for it", name)
			}
		}
		r, err := newRun(io, o, args)
		if err != nil {
			return err
		}
		return r.run(cmd.Context())
	})
}

// wrongRun is a usage error of run, which leaves 1 and 2 to the command.
func wrongRun(format string, args ...any) error {
	return &statusError{code: exitOwn, err: fmt.Errorf(format, args...), usage: true}
}

// newRun checks the flags and makes of them what is to be started.
func newRun(io stdio, o *runOptions, argv []string) (*commandRun, error) {
	r := &commandRun{io: io, options: o, argv: argv}
	var err error
	if o.level != "" {
		if r.spec.Level, err = tree.ParseLevel(o.level); err != nil {
			return nil, wrongRun("--level: %w", err)
		}
	}
	if o.rung != "" && !slices.Contains(tree.Rungs(), o.rung) {
		return nil, wrongRun("no rung %q: this system has %s", o.rung, strings.Join(tree.Rungs(), ", "))
	}
	if r.spec.Env, err = o.environment(os.Environ()); err != nil {
		return nil, err
	}
	var in, out, errs bool
	r.spec.Stdin, in = io.in.(*os.File)
	r.spec.Stdout, out = io.out.(*os.File)
	r.spec.Stderr, errs = io.err.(*os.File)
	if !in || !out || !errs {
		return nil, &statusError{code: exitOwn, err: errors.New("run needs streams that a process can have")}
	}
	r.spec.Args, r.spec.Rung, r.spec.NewSession, r.spec.NoNewPrivileges = argv, o.rung, o.isolated, o.noNewPrivs
	r.spec.Limits = tree.Limits(o.limits)
	if r.confined() && o.rung == "group" {
		return nil, wrongRun("rung group has nobody that could set a limit or no-new-privs between the command's birth and its first instruction")
	}
	if r.confined() && r.spec.Level < tree.Tracked {
		r.spec.Level = tree.Tracked // below it there is no shim that could set a limit
	}
	if r.report, err = newReportFile(o.report); err != nil {
		return nil, &statusError{code: exitOwn, err: err}
	}
	return r, nil
}

// environment is the command's: the caller's, or what is named of it, and then what is set.
func (o *runOptions) environment(caller []string) ([]string, error) {
	if len(o.pass) > 0 && !o.clean {
		return nil, wrongRun("--pass-env goes with --clean-env: without it the command has all of the caller's environment")
	}
	for _, name := range o.pass {
		if name == "" || strings.ContainsAny(name, "=,") {
			return nil, wrongRun("--pass-env %q is not the name of a variable; it takes one, and may be repeated", name)
		}
	}
	env := []string{}
	for _, entry := range caller {
		name, _, _ := strings.Cut(entry, "=")
		if !o.clean || slices.Contains(o.pass, name) {
			env = append(env, entry)
		}
	}
	for _, entry := range o.env {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return nil, wrongRun("--env %q is not NAME=VALUE (to keep single ones of the caller's: --clean-env --pass-env NAME)", entry)
		}
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, entry)
	}
	return env, nil
}

// confined says whether something was asked for that only a shim can set.
func (r *commandRun) confined() bool {
	return r.spec.NoNewPrivileges || r.spec.Limits != tree.Limits{}
}

// duration is a flag that takes Go's notation, and a bare number as timeout(1) does.
type duration time.Duration

func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (*duration) Type() string { return "duration" }

func (d *duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	some := strings.ContainsAny(s, "123456789")
	if n, bad := strconv.ParseFloat(s, 64); bad == nil && n >= 0 && n < math.MaxInt32 {
		v, err, some = time.Duration(n*float64(time.Second)), nil, n > 0
	}
	if v == 0 && some {
		v = 1 // too short to be counted is not never
	}
	if err != nil || v < 0 {
		return errors.New("not a duration like 90s, 1m30s or 0.5")
	}
	*d = duration(v)
	return nil
}

// limits is a flag that takes one limit each time.
type limits tree.Limits

func (*limits) String() string { return "" }

func (*limits) Type() string { return "limit" }

func (l *limits) Set(s string) error {
	name, value, _ := strings.Cut(s, "=")
	n, ok := size(value)
	switch {
	case !ok:
		return fmt.Errorf("%q is not NAME=N, with N above 0, and K, M or G behind it for units of 1024", s)
	case name == "core" && n == 0:
		l.NoCore = true
	case name == "core":
		return errors.New("core can be 0 alone")
	case n == 0:
		return fmt.Errorf("%s has to be more than 0", name)
	case name == "files":
		l.Files = n
	case name == "data":
		l.Data = n
	case name == "file":
		l.File = n
	default:
		return fmt.Errorf("no limit %q: there are files, data, file and core", name)
	}
	return nil
}

// size reads a number with an optional unit.
func size(s string) (uint64, bool) {
	unit := uint64(1)
	if digits, last := strings.TrimRight(s, "KMG"), strings.TrimLeft(s, "0123456789"); len(last) == 1 {
		unit, s = 1<<(10*(1+strings.Index("KMG", last))), digits
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n * unit, err == nil && n <= (1<<63)/unit
}

// startTimeout bounds everything before the command's first instruction.
const startTimeout = 30 * time.Second

// run runs the command to its end and returns how the program has to end: nil, a *statusError, or not at all, since a
// command's death by a signal is this program's, too.
func (r *commandRun) run(ctx context.Context) error {
	outliveReaders() // they may end before the tree does
	watch := watchSignals()
	defer watch.stop()
	r.watch, r.screen = watch, openScreen(r.spec.NewSession, watch)
	if ctx.Err() != nil { // told to end before it could hand that on
		return r.finish(failedStart(context.Cause(ctx)))
	}
	// A signal from now on is the command's, which may have begun: it is handed on after the start.
	start, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), startTimeout, fmt.Errorf("not started within %v", startTimeout))
	r.screen.lend(&r.spec)
	t, path, err := startCommand(start, r.spec)
	cancel()
	r.screen.lent(t)
	r.path, r.tree, r.began = path, t, time.Now()
	var v runEnd
	if err != nil {
		v = failedStart(err)
	} else {
		v = r.supervise()
	}
	r.screen.restore()
	return r.finish(v)
}

// finish tells what there is to tell, and ends run as v says.
func (r *commandRun) finish(v runEnd) error {
	v = r.tell(v)
	if v.die > 0 {
		r.watch.stop()
		tty.Die(v.die, v.whole)
	}
	if v.code == exitOK && v.err == nil {
		return nil
	}
	return &statusError{code: v.code, err: v.err}
}
