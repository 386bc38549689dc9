package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/room"
)

// logged is a log that a test reads while others write to it.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func (e *served) awaitRoom(t *testing.T, what string, is func(room.Used) bool) {
	t.Helper()
	for late := time.Now().Add(patience); !is(e.room.Used()); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%s: %+v is taken", what, e.room.Used())
		}
	}
}

// hold has three senders send nearly whole messages of a MiB to one inbound, until the log says that others wait for memory.
// What is not read waits in the buffers of both ends, or is not sent.
func (e *served) hold(t *testing.T, log *logged, inbound, begin string) (conns []net.Conn) {
	t.Helper()
	before := log.count("bodies fill the memory")
	for range 3 {
		c, err := net.Dial("tcp", e.Addr(inbound))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		t.Cleanup(func() { _ = c.Close() })
		go func() { _, _ = c.Write(append([]byte(begin), make([]byte, 1<<20-1000)...)) }()
	}
	for late := time.Now().Add(patience); log.count("bodies fill the memory") == before; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%s: the log does not say that bodies wait; %+v is taken", inbound, e.room.Used())
		}
	}
	return conns
}

// TestBodiesShareMemory: inbounds, handlers and outbounds of an engine have one memory for bodies. Those who send nearly whole
// messages by one inbound leave room for small ones; the log says that others wait; what is sent is counted; a reload changes
// how much there is; nothing is taken in the end. Red with Room left out of one of the listeners (the log is silent), and of
// the pipeline, and without Resize.
func TestBodiesShareMemory(t *testing.T) {
	needPython(t)
	var memory atomic.Pointer[room.Room]
	var inHand atomic.Int64
	receiver := newEMR(t, func() bool {
		inHand.Store(max(inHand.Load(), memory.Load().Used().Work))
		return false
	})
	toml := "version = 1\nmemory.bodies = \"4MiB\"\n[inbound.web]\nhttp = { listen = \"127.0.0.1:0\", max_message = \"1MiB\" }\nhandlers = [\"numbered\"]\n" +
		"[inbound.feed]\nmllp = { listen = \"127.0.0.1:0\", max_message = \"1MiB\" }\nhandlers = [\"numbered\"]\n" +
		"[handler.numbered]\nrun = \"feed.py:numbered\"\nto = [\"emr\"]\n" +
		fmt.Sprintf("[outbound.emr]\nmllp = { connect = %q }\n", receiver.Addr())
	dir, log := folder(t, toml), &logged{}
	e := serve(t, dir, Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	memory.Store(e.room)
	for i, tc := range [][2]string{{"web", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1048000\r\n\r\n"}, {"feed", "\x0bMSH|^~\\&|"}} {
		conns := e.hold(t, log, tc[0], tc[1])
		if u := e.room.Used(); u.Begun+u.Grown > 2<<20 {
			t.Errorf("%+v is taken, want half of the memory at most", u)
		}
		exchange(t, dial(t, e.Addr("feed")), troubleMessage("small"))
		if counts := e.quiet(t, int64(i)+1); counts[message.Processed] != int64(i)+1 {
			t.Errorf("beside them: %v", counts)
		}
		for _, c := range conns {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
		e.awaitRoom(t, "when they are gone", func(u room.Used) bool { return u == room.Used{} })
	}
	exchange(t, dial(t, e.Addr("feed")), append(troubleMessage("large"), bytes.Repeat([]byte("x"), 900_000)...))
	if counts := e.quiet(t, 3); counts[message.Processed] != 3 || inHand.Load() < 900_000 {
		t.Errorf("a large one: %v, and %d bytes of it were in hand", counts, inHand.Load())
	}
	e.awaitRoom(t, "when all is done", func(u room.Used) bool { return u == room.Used{} })

	if e.room.Try(3 << 20) {
		t.Error("there is room for more than half of the memory")
	}
	if err := os.WriteFile(e.cfg.File, []byte(strings.Replace(toml, "4MiB", "8MiB", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := e.reload(t); !strings.Contains(strings.Join(r.Changed, "; "), "memory: changed") {
		t.Errorf("the reload changed %q", r.Changed)
	}
	if !e.room.Try(4 << 20) {
		t.Error("there is no more room after the reload")
	} else {
		e.room.Give(4 << 20)
	}
	e.end(t)
	if u := e.room.Used(); u != (room.Used{}) {
		t.Errorf("%+v is taken in the end", u)
	}
}
