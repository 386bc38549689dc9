package worker

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/wire"
)

const testID = "5f3a9c0e1b2d4c6f8091a2b3c4d5e6f7"

// serve gives Serve all that an engine says and returns all that it answers.
func serve(t *testing.T, functions []Function, messages ...wire.Message) ([]wire.Message, error) {
	t.Helper()
	var in, out bytes.Buffer
	for _, m := range messages {
		f, err := wire.Encode(m, wire.DefaultCaps())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteTo(&in); err != nil {
			t.Fatal(err)
		}
	}
	err := Serve(t.Context(), &in, &out, functions...)
	var answers []wire.Message
	for out.Len() > 0 {
		body, err := wire.ReadFrame(&out, wire.DefaultCaps())
		if err != nil {
			t.Fatal(err)
		}
		m, err := wire.Decode(body, wire.Worker, wire.DefaultCaps())
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, m)
	}
	return answers, err
}

func request(phase wire.Phase, name string) *wire.Request {
	return &wire.Request{Binding: wire.Binding{ID: testID, Phase: phase, Name: name}, Message: 7, Inbound: "adt", MsgType: "ADT^A01",
		Control: "C1", Received: "2026-01-02T03:04:05.5Z", Attempt: 2, Timeout: 60000, Body: []byte("MSH|")}
}

// answerOf calls one handler once.
func answerOf(t *testing.T, f HandleFunc) wire.Message {
	t.Helper()
	answers, err := serve(t, []Function{Handler("f", f)}, &wire.Boot{Settings: map[string]any{"a": "b", "n": int64(1)}}, request(wire.PhaseHandle, "f"))
	if err != nil || len(answers) != 2 {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	return answers[1]
}

func returning(r Result, err error) HandleFunc {
	return func(context.Context, *Message) (Result, error) { return r, err }
}

func TestResults(t *testing.T) {
	binding := wire.Binding{ID: testID, Phase: wire.PhaseHandle, Name: "f"}
	a, b := Send("a", []byte("1")), Send("b", []byte("2"))
	for name, c := range map[string]struct {
		give Result
		want wire.Result
	}{
		"nothing":    {Nothing, wire.Result{Sends: []wire.Send{}}},
		"one":        {a, wire.Result{Sends: []wire.Send{{To: "a", Body: []byte("1")}}}},
		"two":        {Sends(a, b), wire.Result{Sends: []wire.Send{{To: "a", Body: []byte("1")}, {To: "b", Body: []byte("2")}}}},
		"none of it": {Sends(), wire.Result{Sends: []wire.Send{}}},
		"drop":       {Drop("no MRN"), wire.Result{Dropped: true, Drop: "no MRN"}},
	} {
		c.want.Binding = binding
		if got := answerOf(t, returning(c.give, nil)); !reflect.DeepEqual(got, &c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, &c.want)
		}
	}
}

type ownError struct{}

func (*ownError) Error() string { return "own" }

type evilError struct{}

func (e *evilError) Error() string { panic("evil") }

// The message pays, the worker lives. Red with the recover taken out of call, with Result.fault returning nothing, and
// with fmt.Sprint(err) as err.Error().
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		f                     HandleFunc
		kind, text, traceback string
	}{
		"error":        {returning(Nothing, &ownError{}), "*worker.ownError", "own", ""},
		"evil error":   {returning(Nothing, &evilError{}), "*worker.evilError", "evil", ""},
		"nil error":    {returning(Nothing, (*evilError)(nil)), "*worker.evilError", "<nil>", ""},
		"panic":        {func(context.Context, *Message) (Result, error) { panic("oh") }, "panic", "oh", "serve_test.go"},
		"nil pointer":  {func(_ context.Context, m *Message) (Result, error) { return Send(*(*string)(nil), nil), nil }, "panic", "nil pointer", "serve_test.go"},
		"nameless":     {returning(Send("", nil), nil), "result", "without a name", ""},
		"mixed":        {returning(Sends(Send("a", nil), Drop("x")), nil), "result", "return Drop alone", ""},
		"large reason": {returning(Drop(strings.Repeat("x", 5<<20)), nil), "result", "too large", ""},
	} {
		fail, ok := answerOf(t, c.f).(*wire.Fail)
		if !ok || fail.Fault.Type != c.kind || !strings.Contains(fail.Fault.Text, c.text) || !strings.Contains(fail.Fault.Traceback, c.traceback) {
			t.Errorf("%s: %+v", name, fail)
		}
	}
}

// Red with capped returning what it got.
func TestFaultTextsAreCapped(t *testing.T) {
	fail, ok := answerOf(t, returning(Nothing, errors.New(strings.Repeat("é", faultCap)))).(*wire.Fail)
	if !ok || len(fail.Fault.Text) > faultCap || !strings.HasSuffix(fail.Fault.Text, "[... cut ...]") {
		t.Errorf("%T, a text of %d bytes", fail, len(fail.Fault.Text))
	}
}

// Red with DefaultCaps in place of the cap of boot.
func TestFrameCapOfBoot(t *testing.T) {
	answers, err := serve(t, []Function{Handler("f", returning(Send("a", make([]byte, 2000)), nil))}, &wire.Boot{FrameCap: 1000}, request(wire.PhaseHandle, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if fail, ok := answers[1].(*wire.Fail); !ok || fail.Fault.Type != "result" || !strings.Contains(fail.Fault.Text, "too large") {
		t.Errorf("%+v", answers[1])
	}
}

func TestMessage(t *testing.T) {
	answer := answerOf(t, func(ctx context.Context, m *Message) (Result, error) {
		if m.ID != 7 || m.Inbound != "adt" || m.Type != "ADT^A01" || m.ControlID != "C1" || m.Attempt != 2 || string(m.Body) != "MSH|" ||
			!m.Received.Equal(time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC)) {
			t.Errorf("%+v", m)
		}
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Minute || time.Until(deadline) < 30*time.Second {
			t.Errorf("the deadline is %v, %v", deadline, ok)
		}
		if s, err := Setting[string](m, "a"); s != "b" || err != nil {
			t.Errorf("%q, %v", s, err)
		}
		if _, err := Setting[string](m, "n"); err == nil || !strings.Contains(err.Error(), `"n" is int64, not string`) {
			t.Error(err)
		}
		if _, err := Setting[bool](m, "none"); err == nil {
			t.Error("a setting that is not there")
		}
		delete(m.Settings(), "a")
		if len(m.Settings()) != 2 {
			t.Error("the map of settings is shared")
		}
		m.Tag("mrn", "1")
		m.Tag("mrn", "2\xff")
		return Nothing, nil
	})
	if r, ok := answer.(*wire.Result); !ok || !reflect.DeepEqual(r.Tags, map[string]string{"mrn": "2\ufffd"}) {
		t.Errorf("%+v", answer)
	}
}

// The largest timeout on the wire is a deadline far off. Red without the min in call: it overflows into the past.
func TestLongestTimeout(t *testing.T) {
	r := request(wire.PhaseHandle, "f")
	r.Timeout = math.MaxInt64
	answers, err := serve(t, []Function{Handler("f", func(ctx context.Context, m *Message) (Result, error) { return Nothing, ctx.Err() })}, &wire.Boot{}, r)
	if _, ok := answers[1].(*wire.Result); !ok || err != nil {
		t.Errorf("%+v, %v", answers[1], err)
	}
}

func TestRouters(t *testing.T) {
	for name, c := range map[string]struct {
		f    RouteFunc
		want string
	}{
		"two":      {func(context.Context, *Message) ([]string, error) { return []string{"a", "b"}, nil }, "result"},
		"none":     {func(context.Context, *Message) ([]string, error) { return nil, nil }, "result"},
		"nameless": {func(context.Context, *Message) ([]string, error) { return []string{""}, nil }, "fail"},
		"error":    {func(context.Context, *Message) ([]string, error) { return nil, io.ErrUnexpectedEOF }, "fail"},
		"panic":    {func(context.Context, *Message) ([]string, error) { panic(1) }, "fail"},
	} {
		answers, err := serve(t, []Function{Router("r", c.f)}, &wire.Boot{}, request(wire.PhaseRoute, "r"))
		if err != nil || answers[1].Type() != c.want {
			t.Errorf("%s: %+v, %v", name, answers[1], err)
		}
	}
}

// Red with lacks and add returning nothing.
func TestBootFails(t *testing.T) {
	f := returning(Nothing, nil)
	admit := wire.Offer{Phase: wire.PhaseHandle, Name: "admit"}
	for name, c := range map[string]struct {
		functions []Function
		want      string
	}{
		"another name":  {[]Function{Handler("admitt", f), Router("r", func(context.Context, *Message) ([]string, error) { return nil, nil })}, `no handler "admit"; it offers: handler "admitt", router "r"`},
		"another phase": {[]Function{Router("admit", func(context.Context, *Message) ([]string, error) { return nil, nil })}, `it offers: router "admit"`},
		"no functions":  {nil, "it offers nothing"},
		"twice":         {[]Function{Handler("admit", f), Handler("admit", f)}, "two of this worker's functions"},
		"no function":   {[]Function{Handler("admit", nil)}, "without a name or a function"},
		"no name":       {[]Function{Handler("", f)}, "without a name or a function"},
	} {
		answers, err := serve(t, c.functions, &wire.Boot{Offers: []wire.Offer{admit}})
		if err == nil || len(answers) != 1 {
			t.Errorf("%s: %v, %v", name, answers, err)
			continue
		}
		if fail, ok := answers[0].(*wire.BootFail); !ok || !strings.Contains(fail.Fault.Text, c.want) {
			t.Errorf("%s: %+v", name, answers[0])
		}
	}
}

// The exchanges of protocol/vectors that a worker judges. Red with either use of outOfOrder taken out.
func TestOrder(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "protocol", "vectors", "order.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Judge, Violation string
		Frames                 []struct{ Hex string }
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		if v.Judge != "worker" {
			continue
		}
		var in []byte
		for _, f := range v.Frames {
			b, err := hex.DecodeString(f.Hex)
			if err != nil {
				t.Fatal(err)
			}
			in = append(in, b...)
		}
		err := Serve(t.Context(), bytes.NewReader(in), io.Discard, Handler("admit", returning(Nothing, nil)))
		var found *wire.Violation
		if errors.As(err, &found); found == nil && (err != nil || v.Violation != "") || found != nil && found.Name != v.Violation {
			t.Errorf("%s: %v, want %q", v.Name, err, v.Violation)
		}
	}
}

// A pipe that breaks is no violation by the engine.
func TestBrokenPipe(t *testing.T) {
	r, w := io.Pipe()
	w.CloseWithError(os.ErrDeadlineExceeded)
	var v *wire.Violation
	if err := Serve(t.Context(), r, io.Discard); !errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &v) {
		t.Error(err)
	}
}
