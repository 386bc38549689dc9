package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/tree"
)

const (
	lineCap   = 8 << 10 // bytes of a line; the rest is left out, with its size
	lineBurst = 500     // lines at once
	lineRate  = 200     // lines a second after that
	lastLines = 20      // kept for the story of a cut
	// pipeSize is as much as a pipe holds: when so much has been read of one, what it held before has been read.
	pipeSize = 64 << 10
	// leastRead is how much is read of a pipe at once to begin with, and mostRead where a read was filled again and again: most
	// workers print little, and each idle one has two such buffers.
	leastRead, mostRead = 512, 32 << 10
	// settling bounds the wait for the readers, which wait for nobody themselves.
	settling = time.Second
)

// output takes what one worker prints. It reads whatever comes, so that a worker never waits for its reader, and passes on
// as much as is fit to be read: what the observer is too slow for is left out.
type output struct {
	session string
	streams []*os.File
	readers sync.WaitGroup
	queue   chan Line     // to the observer; nil if there is none
	told    chan struct{} // closed when the observer has got all of it

	reading sync.Mutex // held over a read from a pipe and its note of the message
	message int64      // what the worker was given last
	taken   [2]int     // bytes read of each stream
	printed int64      // bytes since begin
	kept    [2]lastOf  // of these, of each stream
	once    bool       // there is one message alone: what comes before begin is printed for it, too
	most    int64      // that many; not above 0 if there is no limit
	over    func(*LimitError)

	mu      sync.Mutex
	tokens  float64
	at      time.Time
	dropped int
	last    [][]byte
}

// newOutput makes one that calls over each time that more comes than the spec's limit; it must not block.
func newOutput(spec *Spec, over func(*LimitError)) *output {
	o := &output{session: spec.Name, most: spec.Limits.Output, over: over, once: spec.Exec, tokens: lineBurst, told: make(chan struct{})}
	observer := spec.Observer.Output
	if observer == nil {
		close(o.told)
		return o
	}
	o.queue = make(chan Line, lineBurst)
	go func() {
		defer close(o.told)
		for line := range o.queue {
			line.Text = escape(line.Text)
			observer(line)
		}
	}()
	return o
}

// open makes the pipes and begins to read them. It returns the worker's ends.
func (o *output) open() (stdout, stderr *os.File, err error) {
	r1, stdout, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	r2, stderr, err := os.Pipe()
	if err != nil {
		r1.Close()
		stdout.Close()
		return nil, nil, err
	}
	o.streams = []*os.File{r1, r2}
	o.readers.Go(func() { o.read(0, r1) })
	o.readers.Go(func() { o.read(1, r2) })
	return stdout, stderr, nil
}

// looker looks at the wire, and whether bytes lie in pipes that the worker prints into: tree.Link.Look.
type looker func(printed ...*os.File) (wire tree.Pending, unread bool)

// begin says that the worker is about to get a message: what it has printed until now belongs to the one before. It returns
// what look last told of the wire.
func (o *output) begin(message int64, look looker) tree.Pending {
	o.reading.Lock()
	defer o.reading.Unlock()
	pending, unread := look(o.streams...)
	if unread {
		o.catchUp(look)
		pending, _ = look()
	}
	o.message, o.printed = message, 0
	for i := range o.kept {
		if !o.once {
			o.kept[i] = lastOf{kept: o.kept[i].kept[:0]}
		}
	}
	return pending
}

// catchUp waits until the readers have taken what lies in the pipes now. A worker that prints without end is not waited for.
func (o *output) catchUp(look looker) {
	limit := time.Now().Add(settling)
	for i, r := range o.streams {
		for until := o.taken[i] + pipeSize; o.taken[i] < until && time.Now().Before(limit); {
			if _, unread := look(r); !unread {
				break
			}
			o.reading.Unlock()
			time.Sleep(50 * time.Microsecond)
			o.reading.Lock()
		}
	}
}

// finish ends the capture of a worker that is gone: the readers get a moment for what lies in the pipes, and are then
// closed under whoever may still hold the other ends; and the observer gets a moment for what lies in the queue.
func (o *output) finish() {
	read := o.allRead()
	within(read, lastWord)
	for _, r := range o.streams {
		r.Close()
	}
	<-read
	if o.queue != nil {
		o.rest()
		close(o.queue)
	}
	within(o.told, lastWord)
}

// allRead is closed when the readers have come to the ends of their streams.
func (o *output) allRead() <-chan struct{} {
	read := make(chan struct{})
	go func() {
		o.readers.Wait()
		close(read)
	}()
	return read
}

// whole gives the readers of a worker that has ended a moment to come to its last line.
func (o *output) whole() []string {
	within(o.allRead(), lastWord)
	return o.tail()
}

// within waits for an event, for so long.
func within(event <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-event:
		return true
	case <-t.C:
		return false
	}
}

// read takes lines from one stream until its end.
func (o *output) read(stream int, r *os.File) {
	name := streamName(stream)
	l := lines{emit: func(message int64, text []byte) { o.line(name, message, text) }}
	b := make([]byte, leastRead)
	for {
		var message int64
		n, err := confine.ReadPrinted(r, b, &o.reading, func(n int) {
			message = o.message
			o.taken[stream] += n
			o.kept[stream].add(b[:n])
			if o.printed += int64(n); o.most > 0 && o.printed > o.most {
				o.over(&LimitError{Limit: LimitOutput, Most: o.most, Used: o.printed})
			}
		})
		l.take(message, b[:n])
		if err != nil {
			l.end()
			return
		}
		if n == len(b) && n < mostRead {
			b = make([]byte, min(4*n, mostRead))
		}
	}
}

// lines cuts a stream into lines. A line that is begun under one message and ended under another is two.
type lines struct {
	emit    func(message int64, text []byte)
	message int64
	line    []byte
	more    int // bytes of the line beyond the cap
	begun   bool
}

func (l *lines) take(message int64, b []byte) {
	if message != l.message {
		l.end()
		l.message = message
	}
	for len(b) > 0 {
		part, rest, whole := bytes.Cut(b, []byte{'\n'})
		room := min(lineCap-len(l.line), len(part))
		l.line = append(l.line, part[:room]...)
		l.more += len(part) - room
		l.begun = true
		if whole {
			l.end()
		}
		b = rest
	}
}

// end emits what there is of a line, if one has begun.
func (l *lines) end() {
	if !l.begun {
		return
	}
	text := bytes.TrimSuffix(l.line, []byte{'\r'})
	if l.more > 0 {
		text = fmt.Appendf(text, "... (%d more bytes)", l.more)
	}
	l.emit(l.message, text)
	l.line, l.more, l.begun = l.line[:0], 0, false
}

// line keeps one line for the story of a cut and passes it on, unless there were too many.
func (o *output) line(stream string, message int64, text []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep(text)
	now := time.Now()
	o.tokens = min(lineBurst, o.tokens+now.Sub(o.at).Seconds()*lineRate)
	o.at = now
	if o.queue == nil {
		return
	}
	if o.tokens < 1 {
		o.dropped++
		return
	}
	line := Line{Session: o.session, Stream: stream, Message: message, Text: string(text), Dropped: o.dropped}
	select {
	case o.queue <- line:
		o.tokens--
		o.dropped = 0
	default:
		o.dropped++
	}
}

// rest tells of lines that were left out and had none behind them.
func (o *output) rest() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped == 0 {
		return
	}
	select {
	case o.queue <- Line{Session: o.session, Message: o.message, Dropped: o.dropped}:
	default:
	}
}

// keep keeps the last lines, in the memory of the ones before them.
func (o *output) keep(text []byte) {
	var room []byte
	if len(o.last) == lastLines {
		room = o.last[0][:0]
		o.last = append(o.last[:0], o.last[1:]...)
	}
	o.last = append(o.last, append(room, text...))
}

func (o *output) tail() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []string
	for _, text := range o.last {
		out = append(out, escape(string(text)))
	}
	return out
}

// escape makes a line safe to print: whatever is not printable, and not UTF-8, is written as Go would quote it.
func escape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1, r < utf8.RuneSelf && r != '\t' && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\t' || unicode.IsPrint(r):
			b.WriteString(s[i : i+size])
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}
