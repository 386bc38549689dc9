package wire

import (
	"math"
	"unicode/utf8"
)

// Decode reads the body of one frame that the given side sent. Every error is a *Violation. Bodies of the message
// that it returns point into body.
func Decode(body []byte, from Side, caps Caps) (Message, error) {
	header, segments, err := split(body, caps)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(header) {
		return nil, violation(JSONUTF8, "the header is not UTF-8")
	}
	d := &decoder{parser: parser{in: header, caps: caps}, segments: segments}
	m, err := d.message()
	if err != nil {
		return nil, err
	}
	if m.from() != from {
		return nil, violation(BadDirection, "a %q from the wrong side", m.Type())
	}
	if d.used != len(segments) {
		return nil, violation(SegmentLeft, "%d of %d segments are not referred to", len(segments)-d.used, len(segments))
	}
	return m, nil
}

type decoder struct {
	parser
	segments [][]byte
	used     int // segments referred to so far
}

// fields maps the names of a message's fields to what reads them.
type fields map[string]func() error

// message reads the header. "type" comes first, so that a reader knows the schema before the first other field.
func (d *decoder) message() (Message, error) {
	var m Message
	var schema fields
	var required []string
	var seen []string
	err := d.object(func(key string) (err error) {
		if len(seen) == 0 && key != "type" {
			return violation(BadType, "the first field of a header is its type")
		}
		seen = append(seen, key)
		if key == "type" {
			name, err := d.str()
			if err != nil {
				return err
			}
			m, schema, required = d.schema(name)
			if m == nil {
				return violation(BadType, "no message is of this type")
			}
			return nil
		}
		return d.field(schema, key)
	})
	if err != nil {
		return nil, err
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	if m == nil {
		return nil, violation(JSONMissing, "the header has no field \"type\"")
	}
	if err := missing(required, seen); err != nil {
		return nil, err
	}
	return m, d.form(m, seen)
}

func (d *decoder) field(schema fields, key string) error {
	read, ok := schema[key]
	if !ok {
		return violation(JSONField, "an unknown field before byte %d of the header", d.at)
	}
	return read()
}

func missing(required, seen []string) error {
next:
	for _, want := range required {
		for _, have := range seen {
			if have == want {
				continue next
			}
		}
		return violation(JSONMissing, "no field %q", want)
	}
	return nil
}

// record reads a nested object by its schema; all of its fields are required.
func (d *decoder) record(schema fields) error {
	seen := make([]string, 0, len(schema))
	err := d.object(func(key string) error {
		seen = append(seen, key)
		return d.field(schema, key)
	})
	if err != nil {
		return err
	}
	required := make([]string, 0, len(schema))
	for key := range schema {
		required = append(required, key)
	}
	return missing(required, seen)
}

// schema returns an empty message of the type, what reads its fields, and which of them must be there.
func (d *decoder) schema(name string) (Message, fields, []string) {
	switch name {
	case "boot":
		m := &Boot{}
		return m, fields{
			"version": d.version, "file": d.text(&m.File), "offers": d.offers(&m.Offers),
			"settings": d.settings(&m.Settings), "frame_cap": d.frameCap(&m.FrameCap),
		}, []string{"version", "file", "offers", "settings", "frame_cap"}
	case "ready":
		m := &Ready{}
		return m, fields{"version": d.version, "sdk": d.text(&m.SDK), "offers": d.offers(&m.Offers)},
			[]string{"version", "sdk", "offers"}
	case "bootfail":
		m := &BootFail{}
		return m, fields{"version": d.version, "error": d.fault(&m.Fault)}, []string{"version", "error"}
	case "request":
		m := &Request{}
		f := d.binding(&m.Binding)
		f["message"] = d.number(&m.Message, 1, math.MaxInt64)
		f["inbound"], f["msgtype"], f["control"] = d.text(&m.Inbound), d.text(&m.MsgType), d.text(&m.Control)
		f["received"] = d.text(&m.Received)
		f["attempt"] = func() error {
			n, err := d.integer(1, math.MaxInt32)
			m.Attempt = int(n)
			return err
		}
		f["timeout_ms"] = d.number(&m.Timeout, 0, math.MaxInt64)
		f["body"] = d.segment(&m.Body)
		return m, f, []string{"id", "phase", "name", "message", "inbound", "msgtype", "control", "received", "attempt",
			"timeout_ms", "body"}
	case "result":
		m := &Result{}
		f := d.binding(&m.Binding)
		f["handlers"], f["sends"] = d.names(&m.Handlers), d.sends(&m.Sends)
		f["drop"] = func() error { m.Dropped = true; return d.text(&m.Drop)() }
		f["tags"] = d.tags(&m.Tags)
		return m, f, []string{"id", "phase", "name"}
	case "fail":
		m := &Fail{}
		f := d.binding(&m.Binding)
		f["error"] = d.fault(&m.Fault)
		return m, f, []string{"id", "phase", "name", "error"}
	}
	return nil, nil, nil
}

// form checks what a schema cannot say: a result is a router's choice or a handler's work.
func (d *decoder) form(m Message, seen []string) error {
	r, ok := m.(*Result)
	if !ok {
		return nil
	}
	var answers int
	for _, key := range seen {
		switch key {
		case "handlers":
			answers++
			if r.Phase != PhaseRoute {
				return violation(BadForm, "handlers in the answer of a handler")
			}
		case "sends", "drop":
			answers++
			if r.Phase != PhaseHandle {
				return violation(BadForm, "%s in the answer of a router", key)
			}
		}
	}
	if answers != 1 {
		return violation(BadForm, "a result has one of handlers, sends and drop, not %d", answers)
	}
	return nil
}

func (d *decoder) version() error {
	n, err := d.integer(0, math.MaxInt64)
	if err != nil {
		return err
	}
	if n != Version {
		return violation(BadVersion, "version %d, this side speaks %d", n, Version)
	}
	return nil
}

func (d *decoder) text(to *string) func() error {
	return func() (err error) { *to, err = d.str(); return err }
}

func (d *decoder) number(to *int64, low, high int64) func() error {
	return func() (err error) { *to, err = d.integer(low, high); return err }
}

func (d *decoder) frameCap(to *int) func() error {
	return func() error {
		n, err := d.integer(0, math.MaxUint32)
		*to = int(min(n, math.MaxInt)) // an int of 32 bits holds no more
		return err
	}
}

func (d *decoder) phase(to *Phase) func() error {
	return func() error {
		s, err := d.str()
		if err != nil {
			return err
		}
		if *to = Phase(s); *to != PhaseRoute && *to != PhaseHandle {
			return violation(BadPhase, "no such phase")
		}
		return nil
	}
}

func (d *decoder) name(to *string) func() error {
	return func() (err error) {
		if *to, err = d.str(); err == nil && *to == "" {
			return violation(BadName, "an empty name")
		}
		return err
	}
}

func (d *decoder) binding(to *Binding) fields {
	return fields{
		"id": func() (err error) {
			if to.ID, err = d.str(); err == nil && !validID(to.ID) {
				return violation(BadID, "no 32 lower-case hexadecimal digits")
			}
			return err
		},
		"phase": d.phase(&to.Phase),
		"name":  d.name(&to.Name),
	}
}

// validID refuses anything but 32 lower-case hexadecimal digits that are not all zero.
func validID(s string) bool {
	if len(s) != 32 {
		return false
	}
	zero := true
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
		zero = zero && c == '0'
	}
	return !zero
}

func (d *decoder) offers(to *[]Offer) func() error {
	return func() error {
		*to = []Offer{}
		return d.array(func() error {
			var o Offer
			err := d.record(fields{"phase": d.phase(&o.Phase), "name": d.name(&o.Name)})
			*to = append(*to, o)
			return err
		})
	}
}

func (d *decoder) names(to *[]string) func() error {
	return func() error {
		*to = []string{}
		return d.array(func() error {
			var s string
			err := d.name(&s)()
			*to = append(*to, s)
			return err
		})
	}
}

func (d *decoder) sends(to *[]Send) func() error {
	return func() error {
		*to = []Send{}
		return d.array(func() error {
			var s Send
			err := d.record(fields{"to": d.name(&s.To), "body": d.segment(&s.Body)})
			*to = append(*to, s)
			return err
		})
	}
}

func (d *decoder) tags(to *map[string]string) func() error {
	return func() error {
		*to = map[string]string{}
		return d.object(func(key string) (err error) { (*to)[key], err = d.str(); return err })
	}
}

func (d *decoder) settings(to *map[string]any) func() error {
	return func() error {
		*to = map[string]any{}
		return d.object(func(key string) (err error) { (*to)[key], err = d.value(); return err })
	}
}

func (d *decoder) fault(to *Fault) func() error {
	return func() error {
		return d.record(fields{"type": d.text(&to.Type), "text": d.text(&to.Text), "traceback": d.text(&to.Traceback)})
	}
}

// segment reads a reference to a segment: its number, counted from 0. References come in order, so that a reader can
// take the segments one after the other, and each exactly once.
func (d *decoder) segment(to *[]byte) func() error {
	return func() error {
		n, err := d.integer(0, math.MaxUint32)
		switch {
		case err != nil:
			return err
		case n != int64(d.used):
			return violation(SegmentOrder, "segment %d where %d is next", n, d.used)
		case d.used >= len(d.segments):
			return violation(SegmentMissing, "segment %d of %d", n, len(d.segments))
		}
		*to = d.segments[n]
		d.used++
		return nil
	}
}
