// Command torture runs victims under any supervisor and shows who is left after each end, as an outside observer sees it:
//
//	go run ./internal/victim/torture [flags] -- TOOL ARG...
//
// The victim's own words are appended to the tool's, or put where one of them is {}. The tool has to leave standard
// input and output to its command, and output alone. The ends are the command's own exit (exit), SIGTERM for the tool (term),
// SIGKILL for the tool (kill), and the tool's deadline where it has one (deadline). Whoever is left is killed afterwards.
//
// Exit status: 0 if nobody was left anywhere, 1 if somebody was, 2 if the comparison could not be made.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/internal/victim/observer"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

func main() {
	victim.Main()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const (
	someLeft = 1
	noResult = 2
)

// options are what the flags say.
type options struct {
	tool     []string
	uid      int
	deadline time.Duration
	patience time.Duration
	ends     []string
	victims  []string
	json     bool
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return noResult
	}
	outcomes, err := torture(ctx, o, progress(o, stderr))
	if err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return noResult
	}
	if err := show(stdout, o, outcomes); err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return noResult
	}
	if slices.ContainsFunc(outcomes, func(x observer.Outcome) bool { return len(x.Left) > 0 }) {
		return someLeft
	}
	return 0
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("torture", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, "Usage: torture [flags] -- TOOL ARG...\n\nRuns victims under a supervisor and shows who is left after each end. {} among the "+
			"arguments is where the\nvictim's own go; otherwise they are appended.\n\n")
		f.PrintDefaults()
	}
	f.IntVar(&o.uid, "uid", os.Geteuid(), "run the tool as this user and group; for root")
	f.DurationVar(&o.deadline, "deadline-in-tool", 0, "the deadline that the tool's own arguments set; without it that end is left out")
	f.DurationVar(&o.patience, "patience", 3*time.Second, "who is still there when for so long nobody more has ended has survived")
	ends := f.String("ends", "exit,term,kill", "the ends to go through")
	victims := f.String("victims", "", "the victims to run (default: all)")
	f.BoolVar(&o.json, "json", false, "print JSON in place of the table")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.tool, o.ends = f.Args(), split(*ends)
	if o.victims = split(*victims); o.deadline > 0 {
		o.ends = append(o.ends, "deadline")
	}
	for _, e := range o.ends {
		if !slices.Contains([]string{"exit", "term", "kill", "deadline"}, e) || e == "deadline" && o.deadline <= 0 {
			return nil, fmt.Errorf("no end %q: there are exit, term, kill, and deadline by --deadline-in-tool", e)
		}
	}
	switch {
	case len(o.tool) == 0:
		return nil, errors.New("no tool: name it behind --")
	case len(o.ends) == 0 || o.patience <= 0:
		return nil, errors.New("no end, or no patience")
	case o.uid != os.Geteuid() && os.Geteuid() != 0:
		return nil, errors.New("--uid: only root can become somebody else")
	}
	return o, nil
}

func split(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// progress tells of each outcome where a person sees it.
func progress(o *options, stderr io.Writer) func(done, total int, name string) {
	f, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func(int, int, string) {}
	}
	bar := progressbar.NewOptions(-1, progressbar.OptionSetWriter(stderr), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond))
	return func(done, total int, name string) {
		bar.ChangeMax(total)
		bar.Describe(name)
		bar.Set(done)
		if done == total {
			bar.Finish()
		}
	}
}

func show(w io.Writer, o *options, outcomes []observer.Outcome) error {
	if o.json {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			Tool     []string           `json:"tool"`
			UID      int                `json:"uid"`
			Outcomes []observer.Outcome `json:"outcomes"`
		}{o.tool, o.uid, outcomes})
	}
	fmt.Fprintf(w, "%s (uid %d)\n\n", strings.Join(o.tool, " "), o.uid)
	observer.Print(w, o.ends, outcomes)
	var sums []string
	for _, end := range o.ends {
		left, all := 0, 0
		for _, x := range outcomes {
			if x.End == end && x.Skipped == "" {
				all++
				left += min(len(x.Left), 1)
			}
		}
		sums = append(sums, fmt.Sprintf("%s %d of %d", end, left, all))
	}
	_, err := fmt.Fprintf(w, "\nvictims of which somebody was left: %s\n", strings.Join(sums, ", "))
	return err
}
