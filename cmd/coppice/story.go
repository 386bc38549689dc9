package main

import (
	"fmt"
	"strings"
	"time"

	"coppice.dev/coppice/internal/flight"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/tree"
)

// story writes a record for people.
type story struct {
	flight.Record
	b *strings.Builder
}

func (s *story) line(format string, args ...any) { fmt.Fprintf(s.b, format+"\n", args...) }

func (s *story) tell() {
	s.line("cut %d: %s", s.ID, printable(s.headline()))
	s.line("  when      %s", s.At.Local().Format("2006-01-02 15:04:05.000 -07:00"))
	s.line("  paid by   %s", s.payer())
	s.line("  rule      %s", rule(s.Record))
	if hint := hint(s.Record); hint != "" {
		s.line("  hint      %s", hint)
	}
	s.timeline()
	if !s.Unstarted() {
		s.tree()
		s.output()
	}
	s.headers()
}

// headline says in one sentence what happened.
func (s *story) headline() string {
	switch {
	case s.Kind == "exit":
		return s.Worker + " ended by itself, " + s.Status
	case s.Kind == "boot" && s.Times > 1:
		return fmt.Sprintf("%s could not start, %d times in a row: %s", s.Worker, s.Times, s.Why)
	case s.Kind == "boot":
		return s.Worker + " could not start: " + s.Why
	}
	return s.Worker + " was cut: " + s.Why
}

func (s *story) payer() string {
	switch {
	case s.Message == 0 && len(s.Steps) > 0 && s.Steps[len(s.Steps)-1].What == sandbox.StepAnswer:
		return "no message: it had answered the last one"
	case s.Message == 0:
		return "no message: it had none, or had not been given it yet"
	case s.Kind == "cancel":
		return fmt.Sprintf("no message: the dispatch of message %d was cancelled", s.Message)
	}
	return fmt.Sprintf("message %d: one of its attempts", s.Message)
}

// rule is what a worker has to keep to, and did not.
func rule(r flight.Record) string {
	switch r.Kind {
	case "deadline":
		return "a function answers by its deadline"
	case "violation":
		return "a worker writes what the protocol allows, when it is asked (" + printable(r.Name) + " in protocol/PROTOCOL.md)"
	case "crash":
		return "a worker lives until it has answered"
	case "boot":
		if r.Unstarted() {
			return "a worker's command can be executed"
		}
		return "a worker loads its code and says that it is ready, within start_timeout"
	case "exit":
		return "none: a worker may end between messages, and what it leaves behind goes with it"
	case "cancel":
		return "none: the engine was stopping, or the dispatch was called off"
	}
	switch r.Name {
	case sandbox.LimitCPU:
		return "a dispatch uses no more CPU than its limit"
	case sandbox.LimitIdleCPU:
		return "a worker that waits for a message does next to nothing"
	case sandbox.LimitOutput:
		return "a worker prints no more than its limit from one message to the next"
	}
	return "a worker keeps no more memory than its limit from one message to the next"
}

func hint(r flight.Record) string {
	switch {
	case r.Left != "":
		return "its tree is not proved gone; until it is, no worker is started in its place: look at the processes below"
	case r.Kind == "deadline":
		return "is it waiting for something, or in a loop? `deadline` in the handler's table allows more"
	case r.OOM == tree.OOMCertain:
		return "the kernel killed it for want of memory: its cgroup's limit, or the host's end, was reached"
	case r.OOM == tree.OOMPerhaps:
		return "nobody here killed it, and while it lived the kernel killed a process for want of memory: this one, if its log (dmesg) says so"
	case r.Kind == "crash" && strings.Contains(r.Status, "killed"):
		return "the engine did not kill it, and nothing says that the kernel did for want of memory: did its own code, or somebody else?"
	case r.Kind == "crash" && strings.Contains(r.Status, "exit status"):
		return "did its code end the process (exit, sys.exit, process.exit, os.Exit)? A function answers by returning; the output says more if it died of an error"
	case r.Kind == "crash":
		return "the output, and a core dump of the same code outside of Coppice, say more: a fault in native code, or a signal from elsewhere?"
	case r.Kind == "violation" && r.Name == "closed":
		return "something closed descriptor 3 or 4, which are the protocol's"
	case r.Kind == "violation":
		return "something else than the SDK wrote to descriptor 4; to print, use stdout or stderr"
	case r.Unstarted():
		return "is the program there, a program of this system, executable, and the interpreter that its first line names, too? A script's lines end in LF, not CRLF"
	case r.Kind == "boot":
		return "`coppice check` starts it the same way"
	case r.Kind == "limit":
		return limitHint(r.Name) + " `limits = { " + limitKey(r.Name) + " = ... }` in the handler's table allows more"
	}
	return ""
}

func limitHint(limit string) string {
	switch limit {
	case sandbox.LimitMemory:
		return "does it keep what it has read, in a global or a cache?"
	case sandbox.LimitOutput:
		return "does it print in a loop, or whole messages?"
	case sandbox.LimitIdleCPU:
		return "has it left a thread or a process that goes on working?"
	}
	return "is it in a loop?"
}

// limitKey is the key of the configuration that sets a limit.
func limitKey(limit string) string { return strings.ReplaceAll(printable(limit), "-", "_") }

func (s *story) timeline() {
	s.line("timeline")
	var began, before time.Time
	for i, step := range s.Steps {
		if i == 0 {
			began, before = step.At, step.At
		}
		if i == 2 && s.gap() {
			s.line("  ...")
		}
		s.line("  %11s  %s", "+"+round(step.At.Sub(began)), stepText(step, step.At.Sub(before)))
		before = step.At
	}
	if began.IsZero() {
		began, before = s.At, s.At
	}
	if s.Unstarted() {
		s.line("  %11s  it could not be started, %s after that", "+"+round(s.At.Sub(began)), round(s.At.Sub(before)))
		return
	}
	what := "cut"
	if s.Kind == "exit" {
		what = "it ended"
	}
	s.line("  %11s  %s, %s after that", "+"+round(s.At.Sub(began)), what, round(s.At.Sub(before)))
	end := s.At.Add(s.Tree.Took)
	if s.Left != "" {
		s.line("  %11s  NOT PROVED GONE: %s", "", printable(s.Left))
		return
	}
	status := ""
	if s.Status != (tree.Status{}).String() { // who dies with its tree has none
		status = "; " + printable(s.Status)
	}
	s.line("  %11s  proved empty, %s after that%s", "+"+round(end.Sub(began)), round(s.Tree.Took), status)
}

// gap says whether steps are missing behind the first two.
func (s *story) gap() bool { return len(s.Steps) > 2 && s.Steps[2].What != sandbox.StepRequest }

func stepText(s sandbox.Step, since time.Duration) string {
	switch s.What {
	case sandbox.StepStart:
		return "its process is being started"
	case sandbox.StepReady:
		return fmt.Sprintf("its code is loaded, after %s", round(since))
	case sandbox.StepRequest:
		return fmt.Sprintf("asked: %s %s, message %d, attempt %d, %d bytes", printable(s.Phase), printable(s.Name), s.Message, s.Attempt, s.Bytes)
	case sandbox.StepAnswer:
		return fmt.Sprintf("answered: %s, %d bytes, after %s", printable(s.Answer), s.Bytes, round(since))
	}
	return printable(s.What)
}

func (s *story) headers() {
	if s.Said != "" {
		s.line("last header to it\n  %s", printable(s.Said))
	}
	if s.Heard != "" {
		s.line("last header from it\n  %s", printable(s.Heard))
	}
}

// tree draws who lived right before the cut.
func (s *story) tree() {
	s.line("its tree as it stood: %s", s.seen())
	s.members(s.Tree.Named)
	if len(s.Tree.Survivors) > 0 {
		s.line("still there when last seen")
		s.members(s.Tree.Survivors)
	}
}

func (s *story) seen() string {
	if s.Tree.Unseen != "" {
		return "not seen, " + printable(s.Tree.Unseen)
	}
	what := fmt.Sprintf("%d processes", s.Tree.Seen)
	if s.Tree.Seen == 1 {
		what = "1 process"
	}
	if more := s.Tree.Seen - len(s.Tree.Named); more > 0 {
		what += fmt.Sprintf(", %d of them not named", more)
	}
	return fmt.Sprintf("%s, level %s (%s)", what, s.Tree.Level, printable(s.Tree.Rung))
}

// deepest is how far a process is drawn from the edge: a record may have a chain of as many as its file holds.
const deepest = 32

// members draws processes below their parents; those whose parent is not among them stand at the edge. Whatever a record says,
// each is drawn once.
func (s *story) members(list []tree.Member) {
	children, among, drawn := map[int][]tree.Member{}, map[int]bool{}, map[int]bool{}
	for _, m := range list {
		among[m.Pid] = true
		children[m.Parent] = append(children[m.Parent], m)
	}
	var draw func(m tree.Member, depth int)
	draw = func(m tree.Member, depth int) {
		if drawn[m.Pid] {
			return
		}
		drawn[m.Pid] = true
		s.line("%*s%d %q", 2*min(depth, deepest), "", m.Pid, m.Name)
		for _, child := range children[m.Pid] {
			draw(child, depth+1)
		}
	}
	for _, m := range list {
		if !among[m.Parent] {
			draw(m, 1)
		}
	}
	for _, m := range list { // what is left are circles
		draw(m, 1)
	}
}

func (s *story) output() {
	if len(s.Output) == 0 {
		s.line("it printed nothing")
		return
	}
	s.line("the last that it printed")
	for _, line := range s.Output {
		s.line("  | %s", printable(line))
	}
}

// round is a duration as people read it.
func round(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}
