package sandbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
	"coppice.dev/coppice/worker"
)

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func ordinary() []worker.Function {
	handler := func(name string, f func(m *worker.Message) (worker.Result, error)) worker.Function {
		return worker.Handler(name, func(_ context.Context, m *worker.Message) (worker.Result, error) { return f(m) })
	}
	return []worker.Function{
		handler("echo", func(m *worker.Message) (worker.Result, error) {
			m.Tag("mrn\xff", "7\xff")
			return worker.Sends(worker.Send("out\xff", m.Body), worker.Send("b", nil)), nil
		}),
		handler("nothing", func(*worker.Message) (worker.Result, error) { return worker.Nothing, nil }),
		handler("drop", func(*worker.Message) (worker.Result, error) { return worker.Drop("no \xff"), nil }),
		handler("error", func(*worker.Message) (worker.Result, error) { return worker.Nothing, errors.New("no \xffpatient") }),
		handler("panic", func(*worker.Message) (worker.Result, error) { panic("oh") }),
		handler("nonsense", func(*worker.Message) (worker.Result, error) { return worker.Send("", nil), nil }),
		handler("large", func(*worker.Message) (worker.Result, error) { return worker.Send("out", make([]byte, 2<<20)), nil }),
		handler("setting", func(m *worker.Message) (worker.Result, error) {
			v, err := worker.Setting[string](m, "a")
			return worker.Send(v, []byte(m.Type+m.ControlID+m.Inbound+m.Received.String())), err
		}),
		handler("changes", func(m *worker.Message) (worker.Result, error) {
			m.Body[0] = 'X'
			return worker.Send("out", m.Body), nil
		}),
		worker.Router("route", func(context.Context, *worker.Message) ([]string, error) { return []string{"a\xff", "b"}, nil }),
		worker.Router("nowhere", func(context.Context, *worker.Message) ([]string, error) { return nil, nil }),
	}
}

// TestOff: functions that are called in process give what a worker with the same functions gives. Red without
// Caller.Call's replacing of what is not UTF-8, without the encoding in server.answer ("large"), and without the copy of the
// body ("changes" changes the caller's).
func TestOff(t *testing.T) {
	spec := Spec{Name: "same", FrameCap: 1 << 20, Settings: map[string]any{"a": "out"}}
	far := newPool(spec.filled(), func(context.Context, *Spec, func(*LimitError)) (child, error) {
		f := newFake(0)
		go func() {
			worker.Serve(context.Background(), reader(f.down.read), writer(f.up.write), ordinary()...)
			f.exit(tree.Status{})
		}()
		return f, nil
	})
	spec.Functions = ordinary()
	near, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Pool{far, near} {
		defer func() {
			if err := p.Close(context.Background()); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
	}
	names := []string{"echo", "nothing", "drop", "error", "panic", "nonsense", "large", "setting", "changes", "unknown", "route", "nowhere"}
	for i, name := range names {
		var results [2]Result
		var errs [2]error
		body := []byte("body")
		for j, p := range []*Pool{far, near} {
			r := Request{Phase: wire.PhaseHandle, Name: name, Message: int64(i + 1), Type: "ADT^A01", ControlID: "C", Inbound: "adt", Body: body, Timeout: long}
			if i >= len(names)-2 {
				r.Phase = wire.PhaseRoute
			}
			results[j], errs[j] = p.Dispatch(t.Context(), r)
			results[j].Took = 0
			var raised *HandlerError
			if errors.As(errs[j], &raised) {
				raised.Fault.Traceback = ""
			}
		}
		// As text: what is empty may be nil as well.
		if fmt.Sprintf("%+v", results[0]) != fmt.Sprintf("%+v", results[1]) || !reflect.DeepEqual(errs[0], errs[1]) {
			t.Errorf("%s: a worker gives\n%+v, %v\nand in process it is\n%+v, %v", name, results[0], errs[0], results[1], errs[1])
		}
		if string(body) != "body" {
			t.Errorf("%s has changed the caller's body", name)
		}
	}
	large := Request{Phase: wire.PhaseHandle, Name: "echo", Message: 1, Body: make([]byte, 2<<20), Timeout: long}
	if _, err := near.Dispatch(t.Context(), large); !as(func(*TooLargeError) bool { return true })(err) {
		t.Errorf("a message over the cap: %v", err)
	}
}

// TestOffOverdue: a function that overruns is not waited for, and nothing else is called in its place before it returns. Red
// with the desk given back by the dispatch.
func TestOffOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Spec{Functions: []worker.Function{
			worker.Handler("sleep", func(context.Context, *worker.Message) (worker.Result, error) {
				time.Sleep(time.Minute)
				return worker.Nothing, nil
			}),
			worker.Handler("goexit", func(context.Context, *worker.Message) (worker.Result, error) {
				runtime.Goexit()
				return worker.Nothing, nil
			}),
		}})
		if err != nil {
			t.Fatal(err)
		}
		call := func(name string, timeout time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			began := time.Now()
			_, err := p.Dispatch(ctx, Request{Phase: wire.PhaseHandle, Name: name, Message: 1})
			if took := time.Since(began); took > timeout {
				t.Errorf("%s took %v", name, took)
			}
			return err
		}
		if err := call("sleep", time.Second); !deadline()(err) || Blame(err) != Worker {
			t.Errorf("%T %v", err, err)
		}
		if err := call("sleep", time.Second); !as(func(*LeftoverError) bool { return true })(err) || Blame(err) != Nobody {
			t.Errorf("while it goes on: %T %v", err, err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.Sleep(time.Minute)
		if err := call("goexit", time.Second); !as(func(*CrashError) bool { return true })(err) {
			t.Errorf("%T %v", err, err)
		}
		if err := call("sleep", 2*time.Minute); err != nil {
			t.Error(err)
		}
		call("sleep", time.Second)
		if err := p.Close(short); err == nil || !strings.Contains(err.Error(), "has not returned") {
			t.Errorf("close while it goes on: %v", err)
		}
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := call("sleep", time.Second); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestOffRefused: red without the first case of Spec.check, and without office.boot.
func TestOffRefused(t *testing.T) {
	for name, s := range map[string]Spec{
		"a command": {Functions: ordinary(), Command: []string{"/x"}},
		"a level":   {Functions: ordinary(), Level: tree.Atomic},
		"no name":   {Functions: []worker.Function{{}}},
		"two":       {Functions: append(ordinary(), ordinary()...)},
	} {
		if _, err := New(s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	p, err := New(Spec{Functions: ordinary(), Offers: []wire.Offer{{Phase: wire.PhaseRoute, Name: "echo"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	if err := p.Boot(t.Context()); !handlerError("offer")(err) || Blame(err) != Nobody {
		t.Errorf("%T %v", err, err)
	}
}
