package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"coppice.dev/coppice/internal/bodydiff"
	"coppice.dev/coppice/internal/cases"
	"coppice.dev/coppice/internal/message"
)

// inColor says whether to use colour on a stream, with https://no-color.org.
func inColor(w io.Writer, when string) bool {
	return when == "always" || when == "auto" && terminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// The colours, as the terminal's own numbers.
const (
	red     = "31"
	green   = "32"
	yellow  = "33"
	cyan    = "36"
	inverse = "7"
)

// painter writes verdicts for people. Whatever a message or a handler says is made safe to print.
type painter struct {
	b     strings.Builder
	color bool
	last  bool // what is compared with was not expected, but sent
}

func (p *painter) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

func (p *painter) in(color, text string) string {
	if !p.color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// verdict writes what is said of a case; whole also says why.
func (p *painter) verdict(v verdict, whole bool) {
	word := map[string]string{passed: p.in(green, "ok   "), mended: p.in(green, "mends"), failed: p.in(red, "FAIL "),
		fresh: p.in(yellow, "new  "), written: p.in(green, "wrote"), unchanged: "same ", unfinished: "wait "}[v.word]
	p.line("%s %s%s", word, printable(v.name), outcomeOf(v.result))
	switch {
	case v.problem != "":
		p.problem(v)
	case !whole || v.word == passed || v.word == unchanged:
	case len(v.differs) > 0:
		p.differences(v)
	default:
		p.story(v)
	}
}

// outcomeOf is in a few words what became of a message.
func outcomeOf(r cases.Result) string {
	if r.Disposition == "" {
		return ""
	}
	s := "  " + string(r.Disposition)
	var flows []string
	for _, h := range r.Handlers {
		var to []string
		for _, send := range h.Sends {
			to = append(to, send.To)
		}
		if len(to) > 0 {
			flows = append(flows, h.Handler+" -> "+strings.Join(slices.Compact(to), ", "))
		}
	}
	if len(flows) > 0 {
		s += "  " + strings.Join(flows, "; ")
	}
	if r.Reason != "" {
		s += "  " + printable(clip(r.Reason, 160))
	}
	return s
}

func (p *painter) problem(v verdict) {
	text := v.problem[:min(len(v.problem), problemCap)]
	for l := range strings.Lines(text) {
		p.line("  %s", printable(strings.TrimRight(l, "\r\n")))
	}
	if v.held != nil {
		p.traceback(v.held.Traceback)
		for _, l := range v.held.Output {
			p.line("  printed: %s", printable(l))
		}
	}
}

func (p *painter) traceback(text string) {
	for l := range strings.Lines(text) {
		p.line("  | %s", printable(strings.TrimRight(l, "\r\n")))
	}
}

// differences says what is not as it was expected, and why a part failed that should not have.
func (p *painter) differences(v verdict) {
	before, now, bodies := "expected", "got", [2]string{"-expected", "+sent"}
	if p.last {
		before, now, bodies = "then", "now", [2]string{"-then", "+now"}
	}
	for _, d := range v.differs {
		if d.Bodies != nil {
			p.line("  %s: %s and %s differ", d.What, p.in(red, bodies[0]), p.in(green, bodies[1]))
			p.diff("    ", bodydiff.Between(d.Bodies.Want, d.Bodies.Got), linesShown, lineShown)
			continue
		}
		p.line("  %s: %s %s, %s %s", printable(d.What), before, orNone(clip(d.Want, 300)), now, orNone(clip(d.Got, 300)))
	}
	p.tracebacks(v.result)
}

func (p *painter) tracebacks(r cases.Result) {
	if r.Router != nil {
		p.traceback(r.Router.Traceback)
	}
	for _, h := range r.Handlers {
		p.traceback(h.Traceback)
	}
}

// story says what each handler did of which nothing is expected.
func (p *painter) story(v verdict) {
	for _, h := range v.result.Handlers {
		if h.State != message.RunSent {
			if h.Reason == v.result.Reason { // it stands behind the disposition
				continue
			}
			p.line("  %s  %s: %s", h.Handler, h.State, printable(clip(h.Reason, 300)))
			continue
		}
		count := map[string]int{}
		for _, s := range h.Sends {
			count[s.To]++
			d := bodydiff.Between(v.body, s.Body)
			if len(d) == 0 {
				p.line("  %s  %d bytes, as it came", cases.Flow(h.Handler, s.To, count[s.To]), len(s.Body))
				continue
			}
			p.line("  %s  %d bytes", cases.Flow(h.Handler, s.To, count[s.To]), len(s.Body))
			p.diff("    ", d, linesShown, lineShown)
		}
	}
	p.tracebacks(v.result)
}

// diff writes a difference, at most so many lines of so many bytes.
func (p *painter) diff(indent string, d []bodydiff.Line, lines, width int) {
	for i, l := range d {
		if i == lines {
			p.line("%s... %d more lines", indent, len(d)-i)
			return
		}
		switch l.Op {
		case bodydiff.Changed:
			p.line("%s  %s: %s -> %s", indent, p.in(cyan, printable(l.Path)), quotedBytes(l.Before, width), quotedBytes(l.After, width))
		case bodydiff.Note:
			p.line("%s  %s", indent, l.Text)
		case bodydiff.Gone:
			p.line("%s%s", indent, p.marked(red, l, width))
		default:
			p.line("%s%s", indent, p.marked(green, l, width))
		}
	}
}

// quotedBytes is a value in quotes, or what there is of it.
func quotedBytes(b []byte, width int) string {
	more := ""
	if len(b) > width {
		more = fmt.Sprintf("… (%d bytes)", len(b))
		b = b[:width]
	}
	return `"` + printable(string(b)) + more + `"`
}

// marked is a line with its marks shown; of a long one the part around the first of them.
func (p *painter) marked(color string, l bodydiff.Line, width int) string {
	start, end := 0, len(l.Text)
	before, after := "", ""
	if end > width {
		if len(l.Marks) > 0 {
			start = max(0, min(l.Marks[0].Start-width/4, end-width))
		}
		end = start + width
		if start > 0 {
			before = "…"
		}
		if end < len(l.Text) {
			after = "…"
		}
	}
	s := p.in(color, string(rune(l.Op))+" "+before)
	for _, m := range l.Marks {
		if m.Start >= end {
			break
		}
		if m.End <= start {
			continue
		}
		m.Start, m.End = max(m.Start, start), min(m.End, end)
		s += p.in(color, printable(string(l.Text[start:m.Start]))) + p.in(color+";"+inverse, printable(string(l.Text[m.Start:m.End])))
		start = m.End
	}
	return s + p.in(color, printable(string(l.Text[start:end]))+after)
}
