package sandbox

import (
	"bytes"
	"strings"
)

// printedCap is how much of what is printed on a stream is kept for the result of a dispatch.
const printedCap = 4 << 10

// Printed is what a worker printed on a stream from a request to its answer, or to the worker's end: the last 4 KiB of it, line by line
// and with control characters escaped as in Line.
type Printed struct {
	Stream string // "stdout" or "stderr"
	Text   string
	Left   int64 // bytes before that, which are left out
}

// lastOf are the last bytes of a stream.
type lastOf struct {
	kept []byte
	left int64
}

func (l *lastOf) add(b []byte) {
	over := max(0, len(l.kept)+len(b)-printedCap)
	l.left += int64(over)
	gone := min(over, len(l.kept))
	l.kept = append(append(l.kept[:0], l.kept[gone:]...), b[over-gone:]...)
}

// text begins where a line does, if more came than is kept.
func (l *lastOf) text(stream string) Printed {
	p := Printed{Stream: stream, Left: l.left}
	kept := l.kept
	if i := bytes.IndexByte(kept, '\n'); p.Left > 0 && i >= 0 && i+1 < len(kept) {
		kept = kept[i+1:]
		p.Left += int64(i) + 1
	}
	var out []string
	for line := range strings.Lines(string(kept)) {
		out = append(out, escape(strings.TrimRight(line, "\r\n")))
	}
	p.Text = strings.Join(out, "\n")
	return p
}

// sinceBegin is what the worker has printed since it got its message. What it printed before it answered has been taken by then; on
// Windows, which does not say what lies in a pipe, only what the readers have come to.
func (o *output) sinceBegin(look looker) (out []Printed) {
	o.reading.Lock()
	defer o.reading.Unlock()
	if _, unread := look(o.streams...); unread {
		o.catchUp(look)
	}
	for i := range o.kept {
		if len(o.kept[i].kept) > 0 {
			out = append(out, o.kept[i].text(streamName(i)))
		}
	}
	return out
}

func streamName(i int) string { return [...]string{"stdout", "stderr"}[i] }
