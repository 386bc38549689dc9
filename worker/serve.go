package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"coppice.dev/coppice/wire"
)

// The types of faults that no error of the user's stands behind.
const (
	faultOffer  = "offer"  // the worker lacks a function that the engine asks for
	faultPanic  = "panic"  // a function panicked
	faultResult = "result" // a function returned what no result can say
)

// readAhead is how much is read at once: the length of an ordinary frame and all of the rest come with one system call.
// The engine writes nothing behind a request before its answer, so no frame waits there.
const readAhead = 16 << 10

// faultCap is the most bytes of each text of a fault.
const faultCap = 64 << 10

// Serve speaks the worker's side of the protocol over any pipe: it answers boot, then one request after the other.
// It returns nil when r ends between frames, a *wire.Violation when the engine broke the protocol, and otherwise the
// error of the pipe, or of a boot that asked for a function that is not there. Functions get a context made from ctx;
// Serve itself ends with r, so close the other end to stop it. It may have read a little beyond the last frame. It starts
// no goroutine and closes nothing.
func Serve(ctx context.Context, r io.Reader, w io.Writer, functions ...Function) error {
	s := &server{r: bufio.NewReaderSize(r, readAhead), w: w, caps: wire.DefaultCaps(), functions: map[wire.Offer]Function{}}
	for more, err := s.boot(functions); more || err != nil; more, err = s.next(ctx) {
		if err != nil {
			return err
		}
	}
	return nil
}

type server struct {
	r         io.Reader
	w         io.Writer
	caps      wire.Caps
	functions map[wire.Offer]Function
	settings  map[string]any
}

// read reads one message of the engine's; nil at the end of the stream.
func (s *server) read() (wire.Message, error) {
	body, err := wire.ReadFrame(s.r, s.caps)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return wire.Decode(body, wire.Engine, s.caps)
}

func (s *server) write(m wire.Message) error {
	frame, err := wire.Encode(m, s.caps)
	if err != nil {
		return err
	}
	_, err = frame.WriteTo(s.w)
	return err
}

// boot answers the first message. more is false at the end of the stream.
func (s *server) boot(functions []Function) (more bool, err error) {
	m, err := s.read()
	if m == nil || err != nil {
		return false, err
	}
	boot, ok := m.(*wire.Boot)
	if !ok {
		return false, outOfOrder(m)
	}
	if boot.FrameCap != 0 {
		s.caps.Frame = boot.FrameCap
	}
	s.settings = boot.Settings
	ready := &wire.Ready{SDK: "coppice.dev/coppice/worker " + runtime.Version(), Offers: []wire.Offer{}}
	text := s.add(functions, ready)
	if text == "" {
		text = s.lacks(boot.Offers, ready.Offers)
	}
	if text != "" {
		fault := wire.Fault{Type: faultOffer, Text: text}
		return false, errors.Join(s.write(&wire.BootFail{Fault: fault}), errors.New("boot: "+text))
	}
	return true, s.write(ready)
}

// add enters the functions and says what is wrong with them, or nothing.
func (s *server) add(functions []Function, ready *wire.Ready) string {
	for _, f := range functions {
		_, twice := s.functions[f.offer]
		switch {
		case f.offer.Name == "" || f.route == nil && f.handle == nil:
			return fmt.Sprintf("%s without a name or a function", kind(f.offer))
		case twice:
			return fmt.Sprintf("two of this worker's functions are %s", kind(f.offer))
		}
		s.functions[f.offer] = f
		ready.Offers = append(ready.Offers, f.offer)
	}
	return ""
}

// lacks names the first function that the engine asks for in vain, and lists what there is.
func (s *server) lacks(asked, have []wire.Offer) string {
	for _, offer := range asked {
		if _, ok := s.functions[offer]; ok {
			continue
		}
		if len(have) == 0 {
			return fmt.Sprintf("this worker has no %s; it offers nothing", kind(offer))
		}
		list := make([]string, 0, len(have))
		for _, o := range have {
			list = append(list, kind(o))
		}
		return fmt.Sprintf("this worker has no %s; it offers: %s", kind(offer), strings.Join(list, ", "))
	}
	return ""
}

func kind(o wire.Offer) string {
	if o.Phase == wire.PhaseRoute {
		return fmt.Sprintf("router %q", o.Name)
	}
	return fmt.Sprintf("handler %q", o.Name)
}

func outOfOrder(m wire.Message) error {
	return &wire.Violation{Name: wire.BadOrder, Detail: fmt.Sprintf("a %q may not come now", m.Type())}
}

// next answers one request. more is false at the end of the stream.
func (s *server) next(ctx context.Context) (more bool, err error) {
	m, err := s.read()
	if m == nil || err != nil {
		return false, err
	}
	request, ok := m.(*wire.Request)
	if !ok {
		return false, outOfOrder(m)
	}
	_, frame, err := s.answer(ctx, request)
	if err != nil {
		return true, err
	}
	_, err = frame.WriteTo(s.w)
	return true, err
}

// answer calls a function and encodes its answer. One that does not fit into a frame is the function's fault.
func (s *server) answer(ctx context.Context, request *wire.Request) (wire.Message, *wire.Frame, error) {
	answer := s.call(ctx, request)
	frame, err := wire.Encode(answer, s.caps)
	var over *wire.Violation
	if errors.As(err, &over) {
		answer = fail(request, faultResult, fmt.Sprintf("the result of %q is too large: %s", request.Name, over.Detail), "")
		frame, err = wire.Encode(answer, s.caps)
	}
	return answer, frame, err
}

// call calls a function and makes its answer, whatever it does short of ending the process.
func (s *server) call(ctx context.Context, request *wire.Request) (answer wire.Message) {
	f, ok := s.functions[wire.Offer{Phase: request.Phase, Name: request.Name}]
	if !ok {
		return fail(request, faultOffer, "no function "+request.Name, "")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(min(request.Timeout, math.MaxInt64/int64(time.Millisecond)))*time.Millisecond)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			answer = fail(request, faultPanic, fmt.Sprint(v), string(debug.Stack()))
		}
	}()
	m := newMessage(request, s.settings)
	if f.route != nil {
		handlers, err := f.route(ctx, m)
		return routed(request, m, handlers, err)
	}
	result, err := f.handle(ctx, m)
	return handled(request, m, result, err)
}

func routed(request *wire.Request, m *Message, handlers []string, err error) wire.Message {
	if err != nil {
		return failed(request, err)
	}
	for _, name := range handlers {
		if name == "" {
			return fail(request, faultResult, fmt.Sprintf("router %q chose a handler without a name", request.Name), "")
		}
	}
	return &wire.Result{Binding: request.Binding, Handlers: handlers, Tags: m.tags}
}

func handled(request *wire.Request, m *Message, r Result, err error) wire.Message {
	if err != nil {
		return failed(request, err)
	}
	if text := r.fault(); text != "" {
		return fail(request, faultResult, fmt.Sprintf("handler %q returned %s", request.Name, text), "")
	}
	return &wire.Result{Binding: request.Binding, Sends: r.sends, Dropped: r.dropped, Drop: r.reason, Tags: m.tags}
}

// failed makes the answer of a function that returned an error. fmt survives an Error method that panics.
func failed(request *wire.Request, err error) *wire.Fail {
	return fail(request, fmt.Sprintf("%T", err), fmt.Sprint(err), "")
}

func fail(request *wire.Request, kind, text, traceback string) *wire.Fail {
	return &wire.Fail{Binding: request.Binding,
		Fault: wire.Fault{Type: capped(kind), Text: capped(text), Traceback: capped(traceback)}}
}

func capped(text string) string {
	const cut = "[... cut ...]"
	if len(text) <= faultCap {
		return text
	}
	return strings.ToValidUTF8(text[:faultCap-len(cut)], "") + cut
}
