package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/sandbox"
)

// say prints to people.
func (d *demo) say(format string, args ...any) {
	if d.asJSON {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar != nil {
		d.bar.Clear()
	}
	fmt.Fprintf(d.io.out, format, args...)
}

// event prints to machines.
func (d *demo) event(name string, fields map[string]any) {
	if !d.asJSON {
		return
	}
	fields["event"] = name
	d.mu.Lock()
	defer d.mu.Unlock()
	lines(d.io.out).Encode(fields)
}

func (d *demo) onProgress(counts map[message.Disposition]int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar == nil {
		return
	}
	var n int64
	for disposition, c := range counts {
		if disposition.Final() {
			n += c
		}
	}
	d.bar.Set64(n)
}

func (d *demo) endBar() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar != nil {
		d.bar.Finish()
		d.bar = nil
	}
}

func (d *demo) onStarted(s sandbox.Started) {
	d.mu.Lock()
	d.started++
	d.mu.Unlock()
}

func (d *demo) onRun(id message.ID, handler string, out message.Outcome) {
	if out.State == message.RunError {
		d.say("error    message %d in handler %s: %s\n", id, handler, printable(out.Reason))
	}
	d.event("ran", map[string]any{"message": id, "handler": handler, "state": out.State, "reason": out.Reason, "attempts": out.Attempts})
}

func (d *demo) onSent(dl message.Delivery, r message.Receipt) {
	d.event("sent", map[string]any{"message": dl.Message, "delivery": dl.Name(), "outbound": dl.Outbound, "receipt": r.Text})
}

func (d *demo) onCut(c sandbox.Cut) {
	d.mu.Lock()
	if c.Err != nil {
		d.unproved++
	}
	d.started--
	if c.Why != nil {
		d.cuts = append(d.cuts, c)
	}
	d.mu.Unlock()
	if c.Why == nil && c.Err == nil {
		return
	}
	took := c.Report.Took.Round(10 * time.Microsecond)
	d.say("cut      message %d in %s: %v; %s (level %s)\n", c.Message, c.Session, c.Why, gone(c.Report.Seen, took), c.Report.Level)
	if c.Err != nil {
		d.say("         NOT PROVED GONE: %v\n", c.Err)
	}
	d.event("cut", map[string]any{"message": c.Message, "worker": c.Session, "why": oneLine(c.Why), "processes": c.Report.Seen,
		"took_ns": c.Report.Took, "level": c.Report.Level, "rung": c.Report.Rung, "proved": c.Err == nil})
}

// gone tells how many processes a cut ended. What had died by itself is looked after all the same.
func gone(n int, took time.Duration) string {
	switch n {
	case 0:
		return fmt.Sprintf("nothing of it was left, seen in %v", took)
	case 1:
		return fmt.Sprintf("1 process gone in %v", took)
	}
	return fmt.Sprintf("%d processes gone in %v", n, took)
}

// close prints the books of an engine that has stopped, and says whether all is accounted for.
func (d *demo) close(books []store.Timeline, stopped error) error {
	left, still := d.left(stopped)
	return unaccounted(d.report(books, left, still))
}

// left says, once the engine has stopped, whether anything of the demonstration still runs.
func (d *demo) left(stopped error) (string, []string) {
	var faults []string
	if stopped != nil {
		faults = append(faults, fmt.Sprintf("the engine did not stop well: %v", stopped))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started == 0 && d.unproved == 0 {
		return "nothing is left running", faults
	}
	left := fmt.Sprintf("%d workers are still running, %d were not proved gone", d.started, d.unproved)
	return left, append(faults, left)
}

// report prints the books, with a word on what is left running and what is wrong with that, and returns all that is wrong.
func (d *demo) report(books []store.Timeline, left string, still []string) []string {
	faults := append([]string{}, d.audit(books)...) // a list for machines too when it is empty
	how := "each once and in order"
	if len(faults) > 0 {
		how = "not what it should have"
	}
	faults = append(faults, still...)
	d.mu.Lock()
	dead := 0
	for _, c := range d.cuts {
		dead += c.Report.Seen
	}
	cuts, arrived := len(d.cuts), len(d.arrived)
	d.mu.Unlock()

	counts := map[message.Disposition]int{}
	for _, t := range books {
		counts[t.Message.Disposition]++
	}
	archive := d.archive()
	d.event("sum", map[string]any{"messages": len(books), "dispositions": counts, "cuts": cuts, "processes": dead, "level": d.level,
		"emr": arrived, "archive": archive, "took_ns": time.Since(d.began), "faults": faults, "left": left})
	d.say("\n%s\n", d.closingTable(books, counts))
	d.say("%d workers were cut or had crashed, %d processes were killed; %s\n", cuts, dead, left)
	d.say("emr      %d messages, %s, at the demonstration's own receiver\narchive  %d files in %s\n",
		arrived, how, countFiles(archive), archive)
	me := self()
	d.say("\nlook further:\n  %[1]s messages --config %[2]s\n  %[1]s show %[3]d --config %[2]s\n", me, shellWord(d.dir), d.interesting(books))
	return faults
}

// unaccounted makes an error of all that is wrong; nil if nothing is.
func unaccounted(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	err := errors.New("not everything is accounted for")
	for _, f := range faults {
		err = fmt.Errorf("%w\n  %s", err, f)
	}
	return err
}

// closingTable has a row for each disposition; its last cell tells how messages got it.
func (d *demo) closingTable(books []store.Timeline, counts map[message.Disposition]int) string {
	how := map[message.Disposition]string{
		message.Processed: "every delivery arrived",
		message.Filtered:  "a handler dropped it, with the reason",
		message.Unrouted:  "the router chose no handler",
		message.Error:     "its handler was cut on every attempt",
	}
	out := fmt.Sprintf("%-11s %8s\n", "DISPOSITION", "MESSAGES")
	for _, disposition := range message.Dispositions() {
		if disposition.Final() {
			out += fmt.Sprintf("%-11s %8d  %s\n", disposition, counts[disposition], how[disposition])
		}
	}
	return out + fmt.Sprintf("%-11s %8d  of %d sent", "", len(books), len(d.cases))
}

// interesting is the id of a message worth showing: one that failed.
func (d *demo) interesting(books []store.Timeline) message.ID {
	for _, t := range books {
		if t.Message.Disposition == message.Error {
			return t.Message.ID
		}
	}
	return 1
}

func countFiles(dir string) int {
	entries, _ := os.ReadDir(dir) // none, if nothing was delivered
	return len(entries)
}

// audit compares the books with what was sent and what arrived: each message once, with the disposition that it should
// have; each delivery once, in the order of receipt.
func (d *demo) audit(books []store.Timeline) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if len(books) != len(d.cases) {
		fault("%d messages in the store, %d were sent", len(books), len(d.cases))
		return faults
	}
	var emr, archive []string
	for i, c := range d.cases {
		m := books[i].Message
		switch {
		case m.ControlID != c.Control || string(m.Body) != string(c.Body):
			fault("message %d is not what was sent", m.ID)
		case m.Disposition != c.want:
			fault("message %d is %s, and should be %s", m.ID, m.Disposition, c.want)
		}
		if c.emr {
			emr = append(emr, c.Control)
		}
		if c.archive {
			archive = append(archive, c.Control)
		}
	}
	if !slices.Equal(d.arrived, emr) {
		fault("the EMR has %v, and should have %v", d.arrived, emr)
	}
	kept := d.kept(books)
	if !slices.Equal(kept, archive) {
		fault("the archive has %v, and should have %v", kept, archive)
	}
	if n := countFiles(d.archive()); n != len(archive) {
		fault("the archive has %d files, and should have %d", n, len(archive))
	}
	return faults
}

// kept are the control ids of the messages that the books say were archived and whose files hold what came.
func (d *demo) kept(books []store.Timeline) (controls []string) {
	for _, t := range books {
		for _, dl := range t.Deliveries {
			if dl.Outbound != "archive" || dl.State != message.Delivered {
				continue
			}
			b, err := os.ReadFile(filepath.Join(d.archive(), dl.Name()+".hl7"))
			if err == nil && bytes.Equal(b, t.Message.Body) {
				controls = append(controls, t.Message.ControlID)
			}
		}
	}
	return controls
}

func (d *demo) archive() string { return filepath.Join(d.dir, "out", "archive") }
