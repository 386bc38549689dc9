package wire

import (
	"math"
	"math/bits"
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
	d := decoder{parser: parser{in: header, caps: caps}, segments: segments}
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

// schema lists the fields that an object may have: those that it must have, and behind them the others.
type schema struct {
	names    []string
	optional int
}

// set is a set of a schema's fields, by their places.
type set uint

func (s *schema) required() set { return 1<<(len(s.names)-s.optional) - 1 }

// The schemas. A header's type is its first field.
var (
	bootSchema     = schema{names: []string{"type", "version", "file", "offers", "settings", "frame_cap"}}
	readySchema    = schema{names: []string{"type", "version", "sdk", "offers"}}
	bootFailSchema = schema{names: []string{"type", "version", "error"}}
	requestSchema  = schema{names: []string{"type", "id", "phase", "name", "message", "inbound", "msgtype", "control", "received",
		"attempt", "timeout_ms", "body"}}
	resultSchema = schema{names: []string{"type", "id", "phase", "name", "handlers", "sends", "drop", "tags"}, optional: 4}
	failSchema   = schema{names: []string{"type", "id", "phase", "name", "error"}}

	offerSchema = schema{names: []string{"phase", "name"}}
	sendSchema  = schema{names: []string{"to", "body"}}
	faultSchema = schema{names: []string{"type", "text", "traceback"}}
)

// message reads the header. "type" comes first, so that a reader knows the schema before the first other field.
func (d *decoder) message() (Message, error) {
	if err := d.open(); err != nil {
		return nil, err
	}
	key, more, err := d.key(true)
	switch {
	case err != nil:
		return nil, err
	case !more:
		if err := d.end(); err != nil {
			return nil, err
		}
		return nil, violation(JSONMissing, "the header has no field \"type\"")
	}
	isType := string(key) == "type"
	if err := d.colon(); err != nil {
		return nil, err
	}
	if !isType {
		return nil, violation(BadType, "the first field of a header is its type")
	}
	name, err := d.raw()
	if err != nil {
		return nil, err
	}
	switch string(name) {
	case "boot":
		m := &Boot{}
		return m, d.header(&bootSchema, func(name string) error {
			switch name {
			case "version":
				return d.version()
			case "file":
				return d.text(&m.File)
			case "offers":
				return d.offers(&m.Offers)
			case "settings":
				return d.settings(&m.Settings)
			default:
				return d.frameCap(&m.FrameCap)
			}
		})
	case "ready":
		m := &Ready{}
		return m, d.header(&readySchema, func(name string) error {
			switch name {
			case "version":
				return d.version()
			case "sdk":
				return d.text(&m.SDK)
			default:
				return d.offers(&m.Offers)
			}
		})
	case "bootfail":
		m := &BootFail{}
		return m, d.header(&bootFailSchema, func(name string) error {
			if name == "version" {
				return d.version()
			}
			return d.fault(&m.Fault)
		})
	case "request":
		m := &Request{}
		return m, d.header(&requestSchema, func(name string) error { return d.request(m, name) })
	case "result":
		m := &Result{}
		return m, d.result(m)
	case "fail":
		m := &Fail{}
		return m, d.header(&failSchema, func(name string) error {
			if name == "error" {
				return d.fault(&m.Fault)
			}
			return d.binding(&m.Binding, name)
		})
	}
	return nil, violation(BadType, "no message is of this type")
}

func (d *decoder) request(m *Request, name string) (err error) {
	switch name {
	case "message":
		m.Message, err = d.integer(1, math.MaxInt64)
	case "inbound":
		m.Inbound, err = d.str()
	case "msgtype":
		m.MsgType, err = d.str()
	case "control":
		m.Control, err = d.str()
	case "received":
		m.Received, err = d.str()
	case "attempt":
		var n int64
		n, err = d.integer(1, math.MaxInt32)
		m.Attempt = int(n)
	case "timeout_ms":
		m.Timeout, err = d.integer(0, math.MaxInt64)
	case "body":
		err = d.segment(&m.Body)
	default:
		err = d.binding(&m.Binding, name)
	}
	return err
}

// result reads what a schema cannot say as well: a result is a router's choice or a handler's work.
func (d *decoder) result(m *Result) error {
	var answers, chosen, worked int
	err := d.header(&resultSchema, func(name string) (err error) {
		switch name {
		case "handlers":
			chosen++
			err = d.names(&m.Handlers)
		case "sends":
			worked++
			err = d.sends(&m.Sends)
		case "drop":
			worked++
			m.Dropped = true
			m.Drop, err = d.str()
		case "tags":
			err = d.tags(&m.Tags)
		default:
			err = d.binding(&m.Binding, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	switch answers = chosen + worked; {
	case chosen > 0 && m.Phase != PhaseRoute:
		return violation(BadForm, "handlers in the answer of a handler")
	case worked > 0 && m.Phase != PhaseHandle:
		return violation(BadForm, "sends or drop in the answer of a router")
	case answers != 1:
		return violation(BadForm, "a result has one of handlers, sends and drop, not %d", answers)
	}
	return nil
}

// header reads what follows the type, to the end.
func (d *decoder) header(s *schema, read func(name string) error) error {
	have, err := d.fields(s, 1, false, read)
	if err == nil {
		err = d.end()
	}
	if err == nil {
		err = s.complete(have)
	}
	return err
}

// record reads a nested object.
func (d *decoder) record(s *schema, read func(name string) error) error {
	have, err := d.fields(s, 0, true, read)
	if err == nil {
		err = s.complete(have)
	}
	return err
}

// fields reads an object, whole or from behind its first fields on, which have been read, and calls read where each value
// starts. It returns which fields there were.
func (d *decoder) fields(s *schema, have set, whole bool, read func(name string) error) (set, error) {
	if whole {
		if err := d.open(); err != nil {
			return have, err
		}
	}
	for first := whole; ; first = false {
		key, more, err := d.key(first)
		if err != nil || !more {
			return have, err
		}
		i := s.index(key)
		if i >= 0 && have&(1<<i) != 0 {
			return have, d.twice()
		}
		if err := d.colon(); err != nil {
			return have, err
		}
		if i < 0 {
			return have, violation(JSONField, "an unknown field before byte %d of the header", d.at)
		}
		have |= 1 << i
		if err := read(s.names[i]); err != nil {
			return have, err
		}
	}
}

func (s *schema) index(key []byte) int {
	for i, name := range s.names {
		if string(key) == name {
			return i
		}
	}
	return -1
}

// complete refuses an object without a field that it must have.
func (s *schema) complete(have set) error {
	if missing := s.required() &^ have; missing != 0 {
		return violation(JSONMissing, "no field %q", s.names[bits.TrailingZeros(uint(missing))])
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

func (d *decoder) text(to *string) (err error) {
	*to, err = d.str()
	return err
}

func (d *decoder) frameCap(to *int) error {
	n, err := d.integer(0, math.MaxUint32)
	*to = int(min(n, math.MaxInt)) // an int of 32 bits holds no more
	return err
}

func (d *decoder) phase(to *Phase) error {
	s, err := d.raw()
	if err != nil {
		return err
	}
	switch string(s) {
	case string(PhaseRoute):
		*to = PhaseRoute
	case string(PhaseHandle):
		*to = PhaseHandle
	default:
		return violation(BadPhase, "no such phase")
	}
	return nil
}

func (d *decoder) name(to *string) (err error) {
	if *to, err = d.str(); err == nil && *to == "" {
		return violation(BadName, "an empty name")
	}
	return err
}

// binding reads one of its three fields.
func (d *decoder) binding(to *Binding, name string) (err error) {
	switch name {
	case "id":
		if to.ID, err = d.str(); err == nil && !validID(to.ID) {
			err = violation(BadID, "no 32 lower-case hexadecimal digits")
		}
	case "phase":
		err = d.phase(&to.Phase)
	default:
		err = d.name(&to.Name)
	}
	return err
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

func (d *decoder) offers(to *[]Offer) (err error) {
	*to, err = list(&d.parser, d.offer)
	return err
}

func (d *decoder) offer(to *Offer) error {
	return d.record(&offerSchema, func(name string) error {
		if name == "phase" {
			return d.phase(&to.Phase)
		}
		return d.name(&to.Name)
	})
}

func (d *decoder) names(to *[]string) (err error) {
	*to, err = list(&d.parser, d.name)
	return err
}

func (d *decoder) sends(to *[]Send) (err error) {
	*to, err = list(&d.parser, d.send)
	return err
}

func (d *decoder) send(to *Send) error {
	return d.record(&sendSchema, func(name string) error {
		if name == "to" {
			return d.name(&to.To)
		}
		return d.segment(&to.Body)
	})
}

func (d *decoder) tags(to *map[string]string) (err error) {
	*to, err = object(&d.parser, d.str)
	return err
}

func (d *decoder) settings(to *map[string]any) (err error) {
	*to, err = d.tree()
	return err
}

func (d *decoder) fault(to *Fault) error {
	return d.record(&faultSchema, func(name string) error {
		switch name {
		case "type":
			return d.text(&to.Type)
		case "text":
			return d.text(&to.Text)
		default:
			return d.text(&to.Traceback)
		}
	})
}

// segment reads a reference to a segment: its number, counted from 0. References come in order, so that a reader can
// take the segments one after the other, and each exactly once.
func (d *decoder) segment(to *[]byte) error {
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
