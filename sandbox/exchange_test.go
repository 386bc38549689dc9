package sandbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// memory is a worker's end in memory: it answers every frame that it is sent with what the script says.
type memory struct {
	pending tree.Pending
	script  func(wire.Message) []byte
	refuse  error // what a write returns
	took    int   // how much of a refused write was taken
	end     error // what comes behind the script's bytes

	sent []wire.Message
	in   bytes.Buffer
}

func (m *memory) look() (tree.Pending, error) { return m.pending, nil }

func (m *memory) Write(b []byte) (int, error) {
	if m.refuse != nil {
		return m.took, m.refuse
	}
	message, err := wire.Decode(b[4:], wire.Engine, wire.DefaultCaps())
	if err != nil {
		return 0, err
	}
	m.sent = append(m.sent, message)
	m.in.Write(m.script(message))
	return len(b), nil
}

func (m *memory) Read(b []byte) (int, error) {
	if m.in.Len() == 0 && m.end != nil {
		return 0, m.end
	}
	return m.in.Read(b)
}

func someRequest() *wire.Request {
	r := Request{Phase: wire.PhaseHandle, Name: "admit", Message: 1, Body: []byte("MSH|")}
	return r.wire(time.Second)
}

// result is an answer as the worker would give it, after a change.
func result(change func(*wire.Result)) func(wire.Message) []byte {
	return func(m wire.Message) []byte {
		r := answer(m.(*wire.Request))
		change(r)
		return encode(r)
	}
}

func text(s string) func(wire.Message) []byte { return func(wire.Message) []byte { return []byte(s) } }

// header is a frame with this header, in which ID is replaced by the request's id.
func header(s string) func(wire.Message) []byte {
	return func(m wire.Message) []byte {
		h := strings.ReplaceAll(s, "ID", m.(*wire.Request).ID)
		b := binary.BigEndian.AppendUint32(nil, uint32(len(h)+4))
		return append(binary.BigEndian.AppendUint32(b, uint32(len(h))), h...)
	}
}

// TestAnswers holds the answer to a request to the protocol. Red with Binding.Check left out of exchange.dispatch: the five
// foreign answers are taken. Decode's own violations are package wire's; here is one of each kind, to see that it arrives.
func TestAnswers(t *testing.T) {
	const id = `"id":"ID","phase":"handle","name":"admit"`
	for name, c := range map[string]struct {
		script func(wire.Message) []byte
		want   string // the violation; none if empty
	}{
		"a result":               {result(func(*wire.Result) {}), ""},
		"of another id":          {result(func(r *wire.Result) { r.ID = strings.Repeat("a", 32) }), wire.BadID},
		"of no id":               {result(func(r *wire.Result) { r.ID = strings.Repeat("0", 32) }), wire.BadID},
		"of a malformed id":      {result(func(r *wire.Result) { r.ID = "x" }), wire.BadID},
		"of another name":        {result(func(r *wire.Result) { r.Name = "other" }), wire.BadName},
		"of another phase":       {header(`{"type":"result","id":"ID","phase":"route","name":"admit","handlers":[]}`), wire.BadPhase},
		"a fail of another id":   {header(`{"type":"fail","id":"` + strings.Repeat("b", 32) + `","phase":"handle","name":"admit","error":{"type":"","text":"","traceback":""}}`), wire.BadID},
		"a ready":                {header(`{"type":"ready","version":1,"sdk":"","offers":[]}`), wire.BadOrder},
		"a bootfail":             {header(`{"type":"bootfail","version":1,"error":{"type":"","text":"","traceback":""}}`), wire.BadOrder},
		"a boot":                 {header(`{"type":"boot","version":1,"file":"","offers":[],"settings":{},"frame_cap":0}`), wire.BadDirection},
		"its own request":        {func(m wire.Message) []byte { return encode(m) }, wire.BadDirection},
		"no type known":          {header(`{"type":"eval"}`), wire.BadType},
		"a field too many":       {header(`{"type":"result",` + id + `,"sends":[],"exec":"rm"}`), wire.JSONField},
		"a field twice":          {header(`{"type":"result",` + id + `,"sends":[],"sends":[]}`), wire.JSONDuplicate},
		"a field too few":        {header(`{"type":"fail",` + id + `}`), wire.JSONMissing},
		"two answers in one":     {header(`{"type":"result",` + id + `,"sends":[],"drop":""}`), wire.BadForm},
		"a segment not there":    {header(`{"type":"result",` + id + `,"sends":[{"to":"x","body":0}]}`), wire.SegmentMissing},
		"no JSON":                {header(`hello`), wire.JSONSyntax},
		"printed text":           {text("hello, world\n"), wire.FrameCap},
		"a length over the cap":  {text("\xff\xff\xff\xff"), wire.FrameCap},
		"a length of nothing":    {text("\x00\x00\x00\x00"), wire.FrameShort},
		"a header out of bounds": {text("\x00\x00\x00\x05\x00\x00\x00\x09x"), wire.HeaderCut},
		"cut in the length":      {text("\x00\x00"), wire.FrameCut},
		"cut in the frame":       {text("\x00\x00\x00\x09\x00"), wire.FrameCut},
	} {
		t.Run(name, func(t *testing.T) {
			m := &memory{script: c.script}
			x := exchange{pipe: m, caps: wire.DefaultCaps()}
			_, err := x.dispatch(someRequest(), m.look)
			var v *wire.Violation
			if errors.As(err, &v) != (c.want != "") || v != nil && v.Name != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestOldAnswer: what was an answer once is none to the next request, since every request has an id of its own.
func TestOldAnswer(t *testing.T) {
	var first []byte
	m := &memory{script: func(r wire.Message) []byte {
		if first == nil {
			first = encode(answer(r.(*wire.Request)))
		}
		return first
	}}
	x := exchange{pipe: m, caps: wire.DefaultCaps()}
	if _, err := x.dispatch(someRequest(), m.look); err != nil {
		t.Fatal(err)
	}
	_, err := x.dispatch(someRequest(), m.look)
	var v *wire.Violation
	if !errors.As(err, &v) || v.Name != wire.BadID {
		t.Errorf("got %v", err)
	}
}

// TestOneFrame: an exchange reads its answer's frame and not a byte more, and what lies behind it is found by the look before
// the next request, which is not sent. Red without the look.
func TestOneFrame(t *testing.T) {
	m := &memory{script: func(r wire.Message) []byte { return append(encode(answer(r.(*wire.Request))), "more"...) }}
	x := exchange{pipe: m, caps: wire.DefaultCaps()}
	if _, err := x.dispatch(someRequest(), m.look); err != nil || m.in.String() != "more" {
		t.Fatalf("%v, left %q", err, m.in.String())
	}
	m.pending = tree.Bytes
	_, err := x.dispatch(someRequest(), m.look)
	var dirty *dirtyError
	var v *wire.Violation
	if !errors.As(err, &dirty) || !errors.As(err, &v) || v.Name != wire.BadOrder || len(m.sent) != 1 {
		t.Errorf("got %v, sent %d", err, len(m.sent))
	}
}

// TestBeforeTheFirstByte: no message pays for a worker that is found gone before its request. Red without the dirtyError of a
// write that took nothing ("refuses the write").
func TestBeforeTheFirstByte(t *testing.T) {
	for name, c := range map[string]struct {
		pipe  *memory
		dirty bool
	}{
		"hung up":             {&memory{pending: tree.HungUp}, true},
		"refuses the write":   {&memory{refuse: errors.New("broken pipe")}, true},
		"broke off the write": {&memory{refuse: errors.New("broken pipe"), took: 9}, false},
		"out of time":         {&memory{refuse: os.ErrDeadlineExceeded}, false},
		"closed by us":        {&memory{refuse: os.ErrClosed}, false},
		"unknown":             {&memory{pending: tree.Unknown, script: text("")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			x := exchange{pipe: c.pipe, caps: wire.DefaultCaps()}
			_, err := x.dispatch(someRequest(), c.pipe.look)
			var dirty *dirtyError
			if err == nil || errors.As(err, &dirty) != c.dirty {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestBootExchange: a worker is ready, or says why not, and anything else is a violation. The cap that boot tells holds for
// its answer; red when exchange.boot leaves caps as they were.
func TestBootExchange(t *testing.T) {
	for name, c := range map[string]struct {
		answer wire.Message
		cap    int
		want   string
	}{
		"ready":          {&wire.Ready{}, 0, ""},
		"ready, too big": {&wire.Ready{SDK: strings.Repeat("x", 1000)}, 1000, wire.FrameCap},
		"a result":       {answer(someRequest()), 0, wire.BadOrder},
	} {
		t.Run(name, func(t *testing.T) {
			m := &memory{script: func(wire.Message) []byte { return encode(c.answer) }}
			x := exchange{pipe: m, caps: wire.DefaultCaps()}
			_, err := x.boot(&wire.Boot{FrameCap: c.cap})
			var v *wire.Violation
			if errors.As(err, &v) != (c.want != "") || v != nil && v.Name != c.want {
				t.Errorf("got %v", err)
			}
		})
	}
	m := &memory{script: func(wire.Message) []byte { return encode(&wire.BootFail{Fault: wire.Fault{Type: "ImportError"}}) }}
	x := exchange{pipe: m, caps: wire.DefaultCaps()}
	if _, err := x.boot(&wire.Boot{}); !handlerError("ImportError")(err) {
		t.Errorf("got %v", err)
	}
}

// TestJudge states the order of blame. Red with any two cases of judge exchanged.
func TestJudge(t *testing.T) {
	cut := &wire.Violation{Name: wire.FrameCut}
	illegal := &wire.Violation{Name: wire.BadID}
	late := judgement{expired: context.DeadlineExceeded, late: true, took: time.Second, dead: true}
	for name, c := range map[string]struct {
		err   error
		j     judgement
		want  string
		blame Fault
	}{
		"closed by us goes first":          {illegal, judgement{closed: true, expired: context.DeadlineExceeded, late: true, dead: true}, "pool is closed", Nobody},
		"then the deadline":                {illegal, late, "no answer by the deadline, after 1s", Worker},
		"then a cancel":                    {illegal, judgement{expired: context.Canceled, dead: true}, "context canceled", Nobody},
		"then illegal bytes":               {illegal, judgement{dead: true}, "protocol violation: id", Worker},
		"then death, at the end":           {io.EOF, judgement{dead: true, status: tree.Status{Known: true, Code: 3}}, "worker died: exit status 3", Worker},
		"then death, inside a frame":       {cut, judgement{dead: true, status: tree.Status{Known: true, Signal: 9}}, "worker died: signal: killed", Worker},
		"then a worker that lives":         {io.EOF, judgement{}, "protocol violation: closed: the worker closed its end of the wire and lives on", Worker},
		"then a worker that lives, inside": {cut, judgement{}, "protocol violation: closed: the worker closed its end of the wire and lives on", Worker},
	} {
		t.Run(name, func(t *testing.T) {
			err := judge(c.err, c.j)
			if err.Error() != c.want || Blame(err) != c.blame || kept(err) {
				t.Errorf("got %q, blame %v", err, Blame(err))
			}
		})
	}
	if err := error(&BootError{Err: judge(io.EOF, late)}); Blame(err) != Nobody {
		t.Error("what happens at boot is nobody's fault")
	}
}

// TestRate: after a burst so many lines a second are passed on, and each says how many were left out before it. Red
// without the rate in output.line.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Line
		o := newOutput(&Spec{Name: "s", Observer: Observer{Output: func(l Line) { got = append(got, l) }}}, nil)
		print := func(n int) {
			for range n {
				o.line("stdout", 1, []byte("x"))
				if len(o.queue) > lineBurst/2 {
					synctest.Wait()
				}
			}
			synctest.Wait()
		}
		print(lineBurst + 100)
		if len(got) != lineBurst {
			t.Errorf("%d lines of the burst", len(got))
		}
		time.Sleep(time.Second)
		print(1)
		if last := got[len(got)-1]; len(got) != lineBurst+1 || last.Dropped != 100 {
			t.Errorf("%d lines, the last %+v", len(got), last)
		}
		print(lineRate + 50)
		o.finish()
		if last := got[len(got)-1]; len(got) != lineBurst+lineRate+1 || last.Dropped != 51 || last.Stream != "" {
			t.Errorf("%d lines, the last %+v", len(got), last)
		}
	})
}

// TestLines: red without the end of a begun line in lines.take ("secret" and "public" make one).
func TestLines(t *testing.T) {
	var got []string
	l := lines{emit: func(message int64, b []byte) { got = append(got, string(rune('0'+message))+string(b)) }}
	l.take(1, []byte("a\n\nb\r\nbegun"))
	l.take(1, []byte(" on\nsecret"))
	l.take(2, []byte("public\n"))
	l.take(3, nil)
	l.end()
	want := "1a,1,1b,1begun on,1secret,2public"
	if s := strings.Join(got, ","); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

// TestEscaping: nothing that a terminal would obey, or a reader could not see, is left.
func TestEscaping(t *testing.T) {
	for in, want := range map[string]string{
		"plain é\t日本 \ufffd": "plain é\t日本 \ufffd",
		"\x1b[31m\x00\x7f":   `\x1b[31m\x00\x7f`,
		"\xffa\xc3":          `\xffa\xc3`,
		"\u202e\u0085":       `\u202e\u0085`,
		"\U000e0001":         `\U000e0001`,
	} {
		if got := escape(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
