package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/doctor"
	"coppice.dev/coppice/tree"
)

func doctorCommand(io stdio) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this host can enforce, by doing it",
		Long: `Doctor tries each way to hold a process tree, as the user that runs it: it starts a small hostile tree and kills it, and kills
a real engine with -9 and looks from outside who is left. It makes namespaces, restricts children, makes a cgroup. It
says what works, why something does not, and what would lift that. It leaves nothing behind.

Exit status 0 if the best rung is atomic and was seen to leave nothing, 1 if this host gives less, 2 if doctor itself
could not do its work.`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return verb(cmd, func(cmd *cobra.Command, _ []string) error { return examine(cmd.Context(), io, asJSON) })
}

// doctorChildCommand is what doctor starts: this program, executed again.
func doctorChildCommand() *cobra.Command {
	cmd := &cobra.Command{Use: doctor.ChildVerb, Hidden: true, Args: cobra.ArbitraryArgs}
	return verb(cmd, func(_ *cobra.Command, args []string) error { return doctor.Child(args) })
}

func examine(ctx context.Context, io stdio, asJSON bool) error {
	r, err := doctor.Run(ctx)
	switch {
	case errors.As(err, new(*signalError)):
		return err
	case err != nil:
		return doctorFailed(io, err)
	case asJSON:
		err = printJSON(io.out, r)
	default:
		err = printReport(io.out, r)
	}
	if err != nil {
		return doctorFailed(io, err)
	}
	if !r.Atomic() {
		return told()
	}
	return nil
}

// exitDoctor says that doctor itself failed: 1 is an answer.
const exitDoctor = 2

// doctorFailed prints the error here, since exit status 2 has the words of wrong usage elsewhere.
func doctorFailed(io stdio, err error) error {
	fmt.Fprintln(io.err, "coppice: doctor:", printableError(err))
	return &statusError{code: exitDoctor}
}

// printReport draws the ladder and lists what was seen.
func printReport(w io.Writer, r *doctor.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", surroundings(r))
	drawLadder(&b, r)
	b.WriteString("\nWHAT WAS SEEN ON EACH RUNG\n")
	hints := map[string]bool{}
	for _, rung := range r.Rungs {
		for i, line := range seenOn(rung, hints) {
			entry(&b, i, rung.Name, line)
		}
	}
	if len(r.Features) > 0 {
		b.WriteString("\nWHAT THE HOST GIVES\n")
	}
	for _, f := range r.Features {
		for i, line := range seenOf(f, hints) {
			entry(&b, i, f.Name, line)
		}
	}
	for _, fault := range r.Faults {
		fmt.Fprintf(&b, "\nFAULT  %s\n", printable(fault))
	}
	fmt.Fprintf(&b, "\n%s\n", lastLine(r))
	_, err := io.WriteString(w, b.String())
	return err
}

// entry prints a line of a list; the first of several has the name before it.
func entry(b *strings.Builder, i int, name, line string) {
	if i > 0 {
		name = ""
	}
	fmt.Fprintf(b, "  %-20s%s\n", name, printable(line))
}

func surroundings(r *doctor.Report) string {
	h := r.Host
	words := []string{r.OS + "/" + r.Arch}
	add := func(is bool, format string, args ...any) {
		if is {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(h.Kernel != "", "kernel %s", h.Kernel)
	add(h.User >= 0, "uid %d", h.User)
	add(h.Container != "", "container %s (%s)", h.Container, h.Evidence)
	add(h.WSL, "WSL")
	add(h.Systemd, "systemd")
	add(h.UserNamespace, "in a user namespace")
	add(h.First, "first process of its namespace")
	add(h.ForeignProc, "/proc is missing or another namespace's: who survives cannot be named")
	add(h.Filtered, "under a seccomp filter")
	add(h.NoNewPrivileges, "no_new_privs")
	return printable(strings.Join(words, ", "))
}

// stepWidth is how far a step of the ladder stands out.
const stepWidth = 3

// drawLadder draws the rungs as a stair, the best on top.
func drawLadder(b *strings.Builder, r *doctor.Report) {
	n := len(r.Rungs)
	for i, rung := range r.Rungs {
		below := stepWidth * (n - 1 - i)
		here := ""
		if rung.Name == r.Rung {
			here = "   <== you stand here"
		}
		stair := strings.Repeat(" ", below) + "___" + strings.Repeat(" ", stepWidth*i)
		if i > 0 {
			stair = strings.Repeat(" ", below) + "___|" + strings.Repeat(" ", stepWidth*i-1)
		}
		fmt.Fprintf(b, "  %s  %-12s%s%s\n", stair, rung.Name, step(rung), here)
	}
}

// step says what one has on a rung.
func step(r doctor.Rung) string {
	switch {
	case r.Facts == nil:
		return "not to be had"
	case !r.Works:
		return fmt.Sprintf("%-9s could not be proved empty", r.Level)
	}
	return fmt.Sprintf("%-9s %s", r.Level, strings.Join(facts(r.Facts), ", "))
}

func facts(f *tree.Facts) (out []string) {
	for _, fact := range []struct {
		holds bool
		name  string
	}{{f.HostDeathSafe, "host-death-safe"}, {f.BornInside, "born inside"}, {f.Transparent, "transparent"},
		{f.Guarded, "guarded"}, {f.Limited, "limits"}} {
		if fact.holds {
			out = append(out, fact.name)
		}
	}
	return out
}

// seenOn tells what was seen on a rung, in lines.
func seenOn(r doctor.Rung, hints map[string]bool) (out []string) {
	if r.Facts == nil {
		return refused(r.Reason, r.Hint, hints)
	}
	out = append(out, "kill         "+seenKill(r.Kill))
	if !r.Works {
		out = append(out, hinted(r.Hint, hints)...)
	}
	if r.HostDeath != nil {
		out = append(out, "host death   "+seenDeath(r.HostDeath))
	}
	if !r.Facts.Guarded && r.Facts.Unguarded != "" {
		out = append(out, "not guarded  "+r.Facts.Unguarded)
	}
	return out
}

func seenKill(k *doctor.Kill) string {
	took := k.Took.Round(10 * time.Microsecond)
	switch {
	case !k.Proved:
		return "NOT PROVED EMPTY: " + k.Error
	case k.Held && k.Seen == 0: // of what was held nobody could be seen
		return fmt.Sprintf("gone in %v; escaped: %s", took, named(k.Escaped))
	case k.Held:
		return fmt.Sprintf("%s; escaped: %s", gone(k.Seen, took), named(k.Escaped))
	}
	return gone(k.Seen, took) + ", and nobody holds its pipe"
}

func seenDeath(d *doctor.HostDeath) string {
	waited := d.Waited.Round(10 * time.Microsecond)
	switch {
	case d.Error != "":
		return "could not be looked at: " + d.Error
	case d.Survived:
		return fmt.Sprintf("engine killed with -9; after %v these lived on: %s", waited, named(d.Survivors))
	}
	return fmt.Sprintf("engine killed with -9; nothing was left after %v", waited)
}

// named lists processes; their names are their own choice.
func named(list []doctor.Process) string {
	if len(list) == 0 {
		return "somebody who holds the tree's pipe"
	}
	var out []string
	for _, p := range list {
		out = append(out, fmt.Sprintf("%d %q", p.Pid, p.Name))
	}
	return strings.Join(out, ", ")
}

func seenOf(f doctor.Feature, hints map[string]bool) []string {
	if f.Works {
		return []string{"works  " + f.Detail}
	}
	return refused(f.Reason, f.Hint, hints)
}

func refused(reason, hint string, given map[string]bool) []string {
	return append([]string{"no     " + reason}, hinted(hint, given)...)
}

// hinted is the hint's line, unless the hint has been given already.
func hinted(hint string, given map[string]bool) []string {
	if hint == "" || given[hint] {
		return nil
	}
	given[hint] = true
	return []string{"       hint: " + hint}
}

// lastLine says where one stands.
func lastLine(r *doctor.Report) string {
	switch {
	case r.Rung == "":
		return "No tree can be held here."
	case r.Atomic():
		return fmt.Sprintf("You stand on %s, level %s: %s.", r.Rung, r.Level, levelMeaning(r.Level))
	case r.Level == tree.Atomic:
		return fmt.Sprintf("You stand on %s, which says %s, but that was not seen: do not rely on it.", r.Rung, r.Level)
	}
	return fmt.Sprintf("You stand on %s, level %s: %s. The hints above say what would give more.", r.Rung, r.Level, levelMeaning(r.Level))
}
