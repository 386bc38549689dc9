package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"

	"coppice.dev/coppice/internal/bodydiff"
	"coppice.dev/coppice/internal/cases"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/sandbox"
)

// The words of a verdict.
const (
	passed     = "passed"
	failed     = "failed"
	fresh      = "new" // nothing is expected
	written    = "written"
	unchanged  = "unchanged"
	unfinished = "unfinished" // the engine has not got to its end
	mended     = "mended"     // it was ERROR, and is not any more
)

// verdict is what is said of one case.
type verdict struct {
	name    string
	word    string
	body    []byte            // as it came
	problem string            // why it could not be tried
	held    *engine.HeldError // if that is it
	result  cases.Result
	differs []cases.Difference
}

func (v *verdict) judge(d []cases.Difference) {
	if v.word, v.differs = passed, d; len(d) > 0 {
		v.word = failed
	}
}

const (
	barAfter   = time.Second
	mostShown  = 5        // of what differs, with --last
	problemCap = 4 << 10  // of a case's problem, in bytes
	linesShown = 40       // of one difference
	lineShown  = 400      // of one line, in bytes
	linesJSON  = 1000     // of one difference
	lineJSON   = 16 << 10 // of one line, in bytes
)

// testReport says what came of the cases.
type testReport struct {
	io      stdio
	color   bool
	asJSON  bool
	verbose bool
	last    bool

	mu     sync.Mutex // handlers print from elsewhere
	bar    *progressbar.ProgressBar
	total  int64
	began  time.Time
	counts map[string]int
	names  map[int64]string // of the cases, by the id that their handlers are told
	now    string           // the case that is under way
	held   map[string]bool  // workers that could not be started and have been told of
	err    error            // of writing
}

func newTestReport(t *tester) *testReport {
	return &testReport{io: t.io, asJSON: t.asJSON, verbose: t.verbose, last: t.last > 0, color: inColor(t.io.out, t.color),
		began: time.Now(), counts: map[string]int{}, names: map[int64]string{}, held: map[string]bool{}}
}

func (r *testReport) begins(id int64, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[id], r.now = name, name
}

// printed shows a line that a handler printed.
func (r *testReport) printed(l sandbox.Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.verbose {
		return
	}
	r.clear()
	name := r.names[l.Message]
	if l.Message == 0 { // while it was being started, for the case that needs it
		name = r.now
	}
	if l.Dropped > 0 {
		fmt.Fprintf(r.io.err, "%s | %s: %d lines left out\n", printable(name), l.Session, l.Dropped)
	}
	if l.Stream != "" {
		fmt.Fprintf(r.io.err, "%s | %s: %s\n", printable(name), l.Session, printable(l.Text))
	}
}

// add reports one case. An error ends the verb: nobody reads any more.
func (r *testReport) add(v verdict) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[v.word]++
	switch {
	case r.asJSON:
		r.err = lines(r.io.out).Encode(verdictJSON(v))
	case r.shows(v):
		r.clear()
		if v.held != nil && r.held[v.held.What] { // once is enough to know why
			v.problem, _, _ = strings.Cut(v.problem, "\n")
			v.held = nil
		} else if v.held != nil {
			r.held[v.held.What] = true
		}
		p := &painter{color: r.color, last: r.last}
		p.verdict(v, r.whole(v))
		_, r.err = fmt.Fprint(r.io.out, p.b.String())
	}
	r.progress(len(v.body))
	return r.err
}

func (r *testReport) shows(v verdict) bool {
	switch v.word {
	case passed, unchanged, unfinished:
		return r.verbose
	}
	return true
}

// whole says whether to tell all of a case.
func (r *testReport) whole(v verdict) bool {
	switch {
	case r.verbose:
		return true
	case v.word == written:
		return v.result.Disposition == message.Error
	}
	return !r.last || r.counts[failed] <= mostShown
}

// progress shows a bar once it has taken a while, where a person sees it.
func (r *testReport) progress(n int) {
	if r.bar == nil {
		if !terminal(r.io.err) || time.Since(r.began) < barAfter {
			r.total -= int64(n)
			return
		}
		r.bar = progressbar.NewOptions64(max(r.total, 1), progressbar.OptionSetWriter(r.io.err), progressbar.OptionShowBytes(true),
			progressbar.OptionSetDescription("testing"), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	}
	r.bar.Add(n)
}

func (r *testReport) clear() {
	if r.bar != nil {
		r.bar.Clear()
	}
}

// sum says how many came out how, and with which status the verb ends.
func (r *testReport) sum(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bar != nil {
		r.bar.Finish()
	}
	if errors.Is(r.err, syscall.EPIPE) { // as the signal that did not come would have it
		return &statusError{code: exitProblem}
	}
	n := 0
	for _, count := range r.counts {
		n += count
	}
	switch {
	case n == 0:
		return err
	case r.asJSON:
		err = errors.Join(err, lines(r.io.out).Encode(r.counts))
	default:
		fmt.Fprintln(r.io.out, r.words())
	}
	if err == nil && r.last && r.counts[unfinished] == n {
		return errors.New("nothing is compared: no handler has ended with any of these messages yet; a larger --last takes older ones, too")
	}
	if err == nil && r.counts[failed] > 0 {
		return told()
	}
	return err
}

func (r *testReport) words() string {
	c := r.counts
	if r.last {
		s := fmt.Sprintf("%d same, %d different, %d not finished yet", c[passed], c[failed], c[unfinished])
		if c[mended] > 0 {
			s += fmt.Sprintf(", %d mended: ERROR before, and not any more", c[mended])
		}
		return s
	}
	if c[written]+c[unchanged] > 0 {
		s := fmt.Sprintf("%d written, %d unchanged", c[written], c[unchanged])
		if c[failed] > 0 {
			s += fmt.Sprintf(", %d failed", c[failed])
		}
		return s
	}
	return fmt.Sprintf("%d passed, %d failed, %d without expectation", c[passed], c[failed], c[fresh])
}

type triedJSON struct {
	Case        string              `json:"case"`
	Verdict     string              `json:"verdict"`
	Problem     string              `json:"problem,omitempty"` // why it could not be tried
	Inbound     string              `json:"inbound,omitempty"`
	Disposition message.Disposition `json:"disposition,omitempty"`
	Reason      string              `json:"reason,omitempty"`
	Tags        map[string]string   `json:"tags,omitempty"`
	Router      *partJSON           `json:"router,omitempty"`
	Handlers    []partJSON          `json:"handlers,omitempty"`
	Differences []differenceJSON    `json:"differences,omitempty"`
}

type partJSON struct {
	Handler   string           `json:"handler,omitempty"`
	State     message.RunState `json:"state"`
	Fault     string           `json:"fault,omitempty"`
	Reason    string           `json:"reason,omitempty"`
	Traceback string           `json:"traceback,omitempty"`
	Sends     []sendJSON       `json:"sends,omitempty"`
}

type sendJSON struct {
	To    string   `json:"to"`
	Bytes int      `json:"bytes"`
	Diff  []string `json:"diff,omitempty"` // from what came, of a new case
}

type differenceJSON struct {
	What string   `json:"what"`
	Want string   `json:"want"`
	Got  string   `json:"got"`
	Diff []string `json:"diff,omitempty"`
}

func verdictJSON(v verdict) triedJSON {
	out := triedJSON{Case: v.name, Verdict: v.word, Problem: v.problem, Inbound: v.result.Inbound, Disposition: v.result.Disposition,
		Reason: v.result.Reason, Tags: v.result.Tags}
	if p := v.result.Router; p != nil {
		j := v.partJSON(*p)
		out.Router = &j
	}
	for _, p := range v.result.Handlers {
		out.Handlers = append(out.Handlers, v.partJSON(p))
	}
	for _, d := range v.differs {
		j := differenceJSON{What: d.What, Want: d.Want, Got: d.Got}
		if d.Bodies != nil {
			j.Diff = diffJSON(d.Bodies.Want, d.Bodies.Got)
		}
		out.Differences = append(out.Differences, j)
	}
	return out
}

func (v *verdict) partJSON(p cases.Part) partJSON {
	j := partJSON{Handler: p.Handler, State: p.State, Fault: p.Fault, Reason: p.Reason, Traceback: p.Traceback}
	for _, s := range p.Sends {
		one := sendJSON{To: s.To, Bytes: len(s.Body)}
		if v.word == fresh {
			one.Diff = diffJSON(v.body, s.Body)
		}
		j.Sends = append(j.Sends, one)
	}
	return j
}

func diffJSON(a, b []byte) []string {
	p := &painter{}
	p.diff("", bodydiff.Between(a, b), linesJSON, lineJSON)
	return strings.Split(strings.TrimSuffix(p.b.String(), "\n"), "\n")
}
