package wire

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Encode makes the frame of a message. Its segments are the message's bodies themselves, not copies: they must not
// change until the frame is written. A message that the caps do not allow is refused with the *Violation that the
// reader would find; settings of a type that the wire does not know are an ordinary error.
func Encode(m Message, caps Caps) (*Frame, error) {
	e := &encoder{out: make([]byte, 2*lengthSize, 512)} // the lengths are filled in at the end
	e.open('{')
	e.text("type", m.Type())
	switch m := m.(type) {
	case *Boot:
		e.integer("version", Version)
		e.text("file", m.File)
		e.offers(m.Offers)
		e.key("settings")
		if err := e.value(anyMap(m.Settings), caps.Depth-1); err != nil {
			return nil, err
		}
		e.integer("frame_cap", int64(m.FrameCap))
	case *Ready:
		e.integer("version", Version)
		e.text("sdk", m.SDK)
		e.offers(m.Offers)
	case *BootFail:
		e.integer("version", Version)
		e.fault(m.Fault)
	case *Request:
		e.binding(m.Binding)
		e.integer("message", m.Message)
		e.text("inbound", m.Inbound)
		e.text("msgtype", m.MsgType)
		e.text("control", m.Control)
		e.text("received", m.Received)
		e.integer("attempt", int64(m.Attempt))
		e.integer("timeout_ms", m.Timeout)
		e.segment("body", m.Body)
	case *Result:
		e.binding(m.Binding)
		e.result(m)
	case *Fail:
		e.binding(m.Binding)
		e.fault(m.Fault)
	default:
		return nil, fmt.Errorf("encode: unknown message %T", m)
	}
	e.close('}')
	return newFrame(e.out, e.segments, caps)
}

type encoder struct {
	out      []byte
	more     bool // a comma is due before the next key or item
	segments [][]byte
}

func (e *encoder) open(c byte) {
	e.out = append(e.out, c)
	e.more = false
}

func (e *encoder) close(c byte) {
	e.out = append(e.out, c)
	e.more = true
}

func (e *encoder) item() {
	if e.more {
		e.out = append(e.out, ',')
	}
	e.more = true
}

func (e *encoder) key(k string) {
	e.item()
	e.str(k)
	e.out = append(e.out, ':')
}

func (e *encoder) text(k, v string) {
	e.key(k)
	e.str(v)
}

func (e *encoder) integer(k string, n int64) {
	e.key(k)
	e.out = strconv.AppendInt(e.out, n, 10)
}

func (e *encoder) segment(k string, body []byte) {
	e.integer(k, int64(len(e.segments)))
	e.segments = append(e.segments, body)
}

func (e *encoder) binding(b Binding) {
	e.text("id", b.ID)
	e.text("phase", string(b.Phase))
	e.text("name", b.Name)
}

func (e *encoder) fault(f Fault) {
	e.key("error")
	e.open('{')
	e.text("type", f.Type)
	e.text("text", f.Text)
	e.text("traceback", f.Traceback)
	e.close('}')
}

func (e *encoder) offers(list []Offer) {
	e.key("offers")
	e.open('[')
	for _, o := range list {
		e.item()
		e.open('{')
		e.text("phase", string(o.Phase))
		e.text("name", o.Name)
		e.close('}')
	}
	e.close(']')
}

func (e *encoder) result(m *Result) {
	switch {
	case m.Phase == PhaseRoute:
		e.key("handlers")
		e.open('[')
		for _, h := range m.Handlers {
			e.item()
			e.str(h)
		}
		e.close(']')
	case m.Dropped:
		e.text("drop", m.Drop)
	default:
		e.key("sends")
		e.open('[')
		for _, s := range m.Sends {
			e.item()
			e.open('{')
			e.text("to", s.To)
			e.segment("body", s.Body)
			e.close('}')
		}
		e.close(']')
	}
	if len(m.Tags) == 0 {
		return
	}
	e.key("tags")
	e.open('{')
	for _, k := range slices.Sorted(maps.Keys(m.Tags)) {
		e.text(k, m.Tags[k])
	}
	e.close('}')
}

func anyMap(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

// value writes a setting. depth is how many more levels of nesting the cap allows.
func (e *encoder) value(v any, depth int) error {
	switch v := v.(type) {
	case string:
		e.str(v)
	case bool:
		e.out = strconv.AppendBool(e.out, v)
	case int:
		e.out = strconv.AppendInt(e.out, int64(v), 10)
	case int64:
		e.out = strconv.AppendInt(e.out, v, 10)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("encode settings: %v is not finite", v)
		}
		from := len(e.out)
		e.out = strconv.AppendFloat(e.out, v, 'g', -1, 64)
		if !slices.ContainsFunc(e.out[from:], func(c byte) bool { return c == '.' || c == 'e' }) {
			e.out = append(e.out, ".0"...) // so that it stays a float on the other side
		}
	case []any:
		if depth == 0 {
			return violation(JSONDepth, "settings are nested too deep")
		}
		e.open('[')
		for _, item := range v {
			e.item()
			if err := e.value(item, depth-1); err != nil {
				return err
			}
			e.more = true
		}
		e.close(']')
	case map[string]any:
		if depth == 0 {
			return violation(JSONDepth, "settings are nested too deep")
		}
		e.open('{')
		for _, k := range slices.Sorted(maps.Keys(v)) {
			e.key(k)
			if err := e.value(v[k], depth-1); err != nil {
				return err
			}
			e.more = true
		}
		e.close('}')
	default:
		return fmt.Errorf("encode settings: a value of type %T", v)
	}
	return nil
}

const hexDigits = "0123456789abcdef"

// str writes a string. Bytes that are not UTF-8 become U+FFFD: a header is text, bodies travel as segments.
func (e *encoder) str(s string) {
	e.out = append(e.out, '"')
	plain := 0 // where what can go out as it is begins
	for i := 0; i < len(s); {
		c, size := s[i], 1
		if c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		e.out = append(e.out, s[plain:i]...)
		switch {
		case c == '"' || c == '\\':
			e.out = append(e.out, '\\', c)
		case c < 0x20:
			e.out = append(e.out, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			var r rune
			r, size = utf8.DecodeRuneInString(s[i:])
			e.out = utf8.AppendRune(e.out, r)
		}
		i += size
		plain = i
	}
	e.out = append(e.out, s[plain:]...)
	e.out = append(e.out, '"')
}
