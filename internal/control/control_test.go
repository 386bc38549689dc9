package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if path := os.Getenv("COPPICE_CONTROL_CHILD"); path != "" {
		os.Exit(child(path))
	}
	goleak.VerifyTestMain(m)
}

// engine is a fake that remembers what it was asked.
type engine struct {
	asked string
	err   error
	began chan struct{} // if not nil, an order says that it began, and waits for its context
}

func (e *engine) note(ctx context.Context, format string, args ...any) error {
	e.asked = fmt.Sprintf(format, args...)
	if e.began != nil {
		close(e.began)
		<-ctx.Done()
	}
	return e.err
}

func (e *engine) Status(ctx context.Context) (Status, error) {
	err := e.note(ctx, "status")
	return Status{Running: true, Since: at, Holds: []message.Hold{{Target: emr, Reason: "r", Since: at}},
		Lanes: []Lane{{Target: emr, Waiting: 3, Oldest: at, Rate: 7, Head: &message.Delivery{Message: 1, Number: 2, State: message.Ready}}}}, err
}

func (e *engine) Hold(ctx context.Context, t message.Target, reason string) error {
	return e.note(ctx, "hold %s %s", t, reason)
}

func (e *engine) Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error) {
	return []message.Hold{{Target: t, Reason: "was", Since: at}}, e.note(ctx, "release %s %t", t, bury)
}

func (e *engine) Replay(ctx context.Context, id message.ID) (message.Replay, error) {
	return message.Replay{Message: id, Router: true, Handlers: []string{"h"}, Ahead: map[string]int64{"emr": 4},
		Sends: []message.Delivery{{Message: id, Number: 3}}}, e.note(ctx, "replay %d", id)
}

func (e *engine) Dismiss(ctx context.Context, id message.ID, reason string) (int64, error) {
	return 2, e.note(ctx, "dismiss %d %s", id, reason)
}

func (e *engine) Resubmit(ctx context.Context, id message.ID, body []byte) (message.ID, error) {
	return id + 1, e.note(ctx, "resubmit %d %q %t", id, body, body == nil)
}

func (e *engine) Purge(ctx context.Context, done, dead time.Time) (store.Purged, error) {
	return store.Purged{Messages: 3, Bytes: 4, More: true}, e.note(ctx, "purge %t %t", done.Equal(at), dead.IsZero())
}

func (e *engine) Reload(ctx context.Context) (Reloaded, error) {
	return Reloaded{Code: "abc", Changed: []string{"code"}, Renamed: 2}, e.note(ctx, "reload")
}

var (
	emr = message.Target{Kind: message.KindOutbound, Name: "emr", Inbound: "adt"}
	at  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// serve listens in a folder of the test's own and returns the socket's path.
func serve(t *testing.T, c Commands) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "control") // t.TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return serveAt(t, c, filepath.Join(dir, "control"))
}

func serveAt(t *testing.T, c Commands, path string) string {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		if runtime.GOOS == "windows" {
			t.Skipf("missing: sockets in the file system")
		}
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, c, nil) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("serve does not stop")
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	return path
}

func dial(t *testing.T, path string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestOrders: each order arrives as it was given, and its answer comes back whole. Red with any field of an order or an answer
// left out of its JSON.
func TestOrders(t *testing.T) {
	e := &engine{}
	c := dial(t, serve(t, e))
	ctx := t.Context()
	same := func(what string, got, want any, err error, asked string) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, error %v; want %+v", what, got, err, want)
		}
		if e.asked != asked {
			t.Errorf("%s: the engine was asked %q, want %q", what, e.asked, asked)
		}
	}
	want, _ := e.Status(ctx)
	got, err := c.Status(ctx)
	same("status", got, want, err, "status")
	same("hold", nil, nil, c.Hold(ctx, emr, "why"), "hold outbound emr, lane of adt why")
	held, err := c.Release(ctx, emr, true)
	same("release", held, []message.Hold{{Target: emr, Reason: "was", Since: at}}, err, "release outbound emr, lane of adt true")
	wantReplay, _ := e.Replay(ctx, 5)
	replay, err := c.Replay(ctx, 5)
	same("replay", replay, wantReplay, err, "replay 5")
	parts, err := c.Dismiss(ctx, 5, "why")
	same("dismiss", parts, int64(2), err, "dismiss 5 why")
	for _, body := range [][]byte{nil, {}, {0, 0xff, '"'}} {
		id, err := c.Resubmit(ctx, 5, body)
		same("resubmit", id, message.ID(6), err, fmt.Sprintf("resubmit 5 %q %t", body, body == nil))
	}
	purged, err := c.Purge(ctx, at, time.Time{})
	same("purge", purged, store.Purged{Messages: 3, Bytes: 4, More: true}, err, "purge true true")
	reloaded, err := c.Reload(ctx)
	same("reload", reloaded, Reloaded{Code: "abc", Changed: []string{"code"}, Renamed: 2}, err, "reload")
}

// TestErrors: an error keeps its words, and those that a caller may ask for keep their identity. Red with kinds empty.
func TestErrors(t *testing.T) {
	e := &engine{}
	c := dial(t, serve(t, e))
	for _, is := range []error{store.ErrNotFound, store.ErrNothingFailed, store.ErrUndeclared, store.ErrUnknown, ErrStarting, ErrStopping, nil} {
		e.err = errors.New("it cannot be")
		if is != nil {
			e.err = fmt.Errorf("message 7: %w", is)
		}
		_, err := c.Replay(t.Context(), 7)
		if err == nil || err.Error() != e.err.Error() || is != nil && !errors.Is(err, is) {
			t.Errorf("got %v, want %v", err, e.err)
		}
	}
}

// TestNoEngine: neither an empty place nor what a dead engine left there is an engine, and the next one takes the place.
func TestNoEngine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c")
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoEngine) {
		t.Errorf("nothing there: %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Skipf("missing: sockets in the file system")
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoEngine) {
		t.Errorf("a dead socket: %v", err)
	}
	dial(t, serveAt(t, &engine{}, path))
}

// TestPrivate: the socket is the user's alone. Red without the chmod in Listen.
func TestPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("missing: file modes")
	}
	info, err := os.Stat(serve(t, &engine{}))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// raw gives an order as bytes and returns the answer's status.
func raw(t *testing.T, path, request string) string {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, request); err != nil {
		return "closed"
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "closed"
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.Status + " " + string(bytes.TrimSpace(text))
}

// TestBadOrders: what is no order is answered as such, and asks nothing of the engine. Guards seen red: without
// DisallowUnknownFields, without the look behind the end, without MaxBytesReader.
func TestBadOrders(t *testing.T) {
	e := &engine{}
	path := serve(t, e)
	post := func(what, body string) string {
		return raw(t, path, fmt.Sprintf("POST /%s HTTP/1.1\r\nHost: e\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", what, len(body), body))
	}
	for what, c := range map[string][2]string{
		"no JSON":         {post("hold", "hello"), "400 Bad Request"},
		"unknown field":   {post("release", `{"target":{"kind":"handler","name":"h"},"burry":true}`), "400 Bad Request"},
		"goes on":         {post("replay", `{"message":1}{"message":2}`), "400 Bad Request"},
		"wrong type":      {post("replay", `{"message":"1; DROP"}`), "400 Bad Request"},
		"unknown order":   {post("shutdown", `{}`), "404 Not Found"},
		"another method":  {raw(t, path, "GET /status HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n"), "405 Method Not Allowed"},
		"no HTTP":         {raw(t, path, "MSH|^~\\&|\r\r\n\r\n"), "400 Bad Request"},
		"absurd length":   {raw(t, path, "POST /hold HTTP/1.1\r\nHost: e\r\nContent-Length: 99999999999999999999\r\n\r\n"), "400 Bad Request"},
		"endless headers": {raw(t, path, "GET / HTTP/1.1\r\n"+strings.Repeat("A: b\r\n", 100_000)), ""},
	} {
		if !strings.HasPrefix(c[0], c[1]) {
			t.Errorf("%s: answered %q, want %q", what, c[0], c[1])
		}
	}
	if e.asked != "" {
		t.Errorf("the engine was asked %q", e.asked)
	}
	if _, err := dial(t, path).Status(t.Context()); err != nil {
		t.Error("after all of that:", err)
	}
}

// TestTooLarge: an order is read up to its cap. Red without MaxBytesReader.
func TestTooLarge(t *testing.T) {
	e := &engine{}
	const most = 1 << 16
	for _, n := range []int{most / 2, most} {
		body := fmt.Sprintf(`{"message":1,"body":%q}`, strings.Repeat("A", n))
		w := httptest.NewRecorder()
		handler(e, most).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/resubmit", strings.NewReader(body)))
		if fits := n < most; fits != (w.Code == http.StatusOK) || fits == strings.Contains(w.Body.String(), "too large") {
			t.Errorf("a body of %d: answered %d %s", n, w.Code, w.Body)
		}
	}
}

// TestStop: an order that hangs, and a connection that says nothing, do not hold up the stop. Red with s.Close left out of
// Serve.
func TestStop(t *testing.T) {
	e := &engine{began: make(chan struct{})}
	ended := make(chan error, 1)
	t.Cleanup(func() { // after the stop, which the next line puts before it
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("the order did not end")
		}
	})
	path := serve(t, e)
	silent, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := dial(t, path)
	go func() {
		_, err := c.Status(context.Background())
		ended <- err
	}()
	<-e.began
}
