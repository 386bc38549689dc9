package worker

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"coppice.dev/coppice/wire"
	"coppice.dev/coppice/worker/hl7"
)

// RouteFunc is a router: it returns the names of the handlers that get the message. None is an answer, too.
type RouteFunc func(ctx context.Context, m *Message) ([]string, error)

// HandleFunc is a handler: it returns what is to be sent.
type HandleFunc func(ctx context.Context, m *Message) (Result, error)

// Function is a router or a handler under the name by which the engine asks for it. Router and Handler make them.
type Function struct {
	offer  wire.Offer
	route  RouteFunc
	handle HandleFunc
}

// Router offers a router. The context that f gets ends at the dispatch's deadline, at which the engine kills the
// process.
func Router(name string, f RouteFunc) Function {
	return Function{offer: wire.Offer{Phase: wire.PhaseRoute, Name: name}, route: f}
}

// Handler offers a handler. Its context is as a router's.
func Handler(name string, f HandleFunc) Function {
	return Function{offer: wire.Offer{Phase: wire.PhaseHandle, Name: name}, handle: f}
}

// Message is one message, as the engine received it. It is for one call and one goroutine at a time; Body may be kept
// and changed.
type Message struct {
	ID        int64     // the engine's
	Inbound   string    // the connection that it came from
	Type      string    // MSH-9, or empty
	ControlID string    // MSH-10, or empty
	Received  time.Time // in UTC; the zero time if the engine gave none
	Attempt   int       // 1 for the first
	Body      []byte

	function string // the one that is called
	settings map[string]any
	tags     map[string]string
	parsed   *hl7.Message
}

func newMessage(r *wire.Request, settings map[string]any) *Message {
	received, err := time.Parse(time.RFC3339Nano, r.Received)
	if err != nil {
		received = time.Time{} // the wire promises text, no more
	}
	return &Message{ID: r.Message, Inbound: r.Inbound, Type: r.MsgType, ControlID: r.Control, Received: received.UTC(),
		Attempt: r.Attempt, Body: r.Body, function: r.Name, settings: settings}
}

// HL7 returns the body as an HL7 v2 message, parsed once. Setting a path in it leaves Body as it was; Body must not be changed meanwhile.
// The error is hl7.ErrNotHL7.
func (m *Message) HL7() (*hl7.Message, error) {
	if m.parsed != nil {
		return m.parsed, nil
	}
	parsed, err := hl7.Parse(m.Body)
	m.parsed = parsed
	return parsed, err
}

// Log returns a logger that writes to stderr from level INFO on, with the function's name, for any goroutine. It tells no time: whoever
// captures the line knows it.
func (m *Message) Log() *slog.Logger {
	withoutTime := func(groups []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey && len(groups) == 0 {
			return slog.Attr{}
		}
		return a
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{ReplaceAttr: withoutTime})).With("function", m.function)
}

// Tag sets what the message can be found by. The last value of a name counts; bytes that are not UTF-8 become U+FFFD.
func (m *Message) Tag(name, value string) {
	if m.tags == nil {
		m.tags = map[string]string{}
	}
	m.tags[strings.ToValidUTF8(name, "\ufffd")] = strings.ToValidUTF8(value, "\ufffd")
}

// Settings returns the settings from the configuration. The map is the caller's, what it holds is shared by all calls.
// Values are of the types that Setting lists.
func (m *Message) Settings() map[string]any { return maps.Clone(m.settings) }

// Setting returns one setting, or an error that names it when it is absent or of another type.
func Setting[T string | bool | int64 | float64 | []any | map[string]any](m *Message, name string) (T, error) {
	var none T
	value, ok := m.settings[name]
	if !ok {
		return none, fmt.Errorf("the setting %q is not there", name)
	}
	typed, ok := value.(T)
	if !ok {
		return none, fmt.Errorf("the setting %q is %T, not %T", name, value, none)
	}
	return typed, nil
}

// Result is what a handler answers. Send, Sends and Drop make one; the zero Result sends nothing.
type Result struct {
	sends   []wire.Send
	dropped bool
	reason  string
	mixed   bool // Sends was given a Drop: no answer
}

// Nothing is the Result of a handler that is done and sends nothing.
var Nothing = Result{}

// Send sends one body to one outbound. The body must not change afterwards.
func Send(to string, body []byte) Result {
	return Result{sends: []wire.Send{{To: to, Body: body}}}
}

// Sends joins results: Sends(Send("emr", a), Send("archive", b)) sends both, all or none. A Drop among them fails the
// message.
func Sends(results ...Result) Result {
	var all Result
	for _, r := range results {
		all.sends = append(all.sends, r.sends...)
		all.mixed = all.mixed || r.mixed || r.dropped
	}
	return all
}

// Drop filters the message, for a reason that people will read.
func Drop(reason string) Result { return Result{dropped: true, reason: reason} }

// fault says what is wrong with a result, or nothing.
func (r Result) fault() string {
	if r.mixed {
		return "a result with a Drop among its Sends; return Drop alone"
	}
	if slices.ContainsFunc(r.sends, func(s wire.Send) bool { return s.To == "" }) {
		return "a result with a Send to an outbound without a name"
	}
	return ""
}
