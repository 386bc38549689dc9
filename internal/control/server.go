package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// Caps and times of one order.
const (
	maxOrder    = 96 << 20 // a body of 64 MiB in base64, with room
	maxConns    = 32
	maxRefusals = 8
	idleTimeout = 30 * time.Second
	readTimeout = 30 * time.Second
	// StopWithin is how long after the end of its context a Serve may take.
	StopWithin = time.Second
)

// Listen takes the socket at path, in place of one that a dead engine left there. Whoever calls it owns what the path
// stands for: the store's lock is held. The error is the system's; one of them is that a path is too long for a socket
// (some hundred bytes) where the system has no way around.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // by the name that it was given, which may be gone by then
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socket{UnixListener: l, path: path}, nil
}

// socket removes its file when it is closed.
type socket struct {
	*net.UnixListener
	path  string
	close sync.Once
	err   error
}

func (s *socket) Close() error {
	s.close.Do(func() { s.err = errors.Join(s.UnixListener.Close(), os.Remove(s.path)) })
	return s.err
}

func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: filepath.ToSlash(s.path), Net: "unix"} }

// Serve answers orders until ctx ends, and closes the listener. An order that is under way then has StopWithin to end.
func Serve(ctx context.Context, l net.Listener, c Commands, log *slog.Logger) error {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &http.Server{Handler: handler(c, maxOrder), ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	stopped := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.Background(), StopWithin)
		defer cancel()
		if s.Shutdown(grace) != nil {
			s.Close()
		}
	})()
	door := &screened{Listener: l, log: log, slots: make(chan struct{}, maxConns), refusals: make(chan struct{}, maxRefusals)}
	defer door.refusing.Wait()
	err := s.Serve(door)
	if ctx.Err() != nil {
		<-stopped
		return nil
	}
	return errors.Join(err, l.Close())
}

// screened accepts the connections of those who may give orders, so many at a time.
type screened struct {
	net.Listener
	log      *slog.Logger
	slots    chan struct{}
	refusals chan struct{}
	refusing sync.WaitGroup
	told     time.Time // when the log last heard of a refusal
	untold   int       // how many there were since
}

func (s *screened) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if err := mayOrder(conn); err != nil {
			s.tell(err, time.Now())
			s.refuse(conn, err)
			continue
		}
		select {
		case s.slots <- struct{}{}:
			return &slotted{Conn: conn, slots: s.slots}, nil
		default:
			conn.Close()
		}
	}
}

// tellEvery is how often the log hears of refusals: a worker can have itself refused ten thousand times a second.
const tellEvery = time.Minute

// tell logs a refusal, if that is not too often. Accept alone calls it.
func (s *screened) tell(why error, now time.Time) {
	if !s.told.IsZero() && now.Sub(s.told) < tellEvery {
		s.untold++
		return
	}
	s.log.Warn("control: refused", "why", why, "more_before", s.untold)
	s.told, s.untold = now, 0
}

// refuse tells somebody why, once he has asked, and apart from those who may.
func (s *screened) refuse(conn net.Conn, why error) {
	select {
	case s.refusals <- struct{}{}:
	default:
		conn.Close()
		return
	}
	s.refusing.Go(func() {
		defer func() { <-s.refusals }()
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(StopWithin))
		if _, err := http.ReadRequest(bufio.NewReader(io.LimitReader(conn, 4<<10))); err != nil {
			return
		}
		text, _ := json.Marshal(failure{Error: why.Error(), Kind: "refused"})
		fmt.Fprintf(conn, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(text), text)
	})
}

type slotted struct {
	net.Conn
	slots chan struct{}
	once  sync.Once
}

func (c *slotted) Close() error {
	c.once.Do(func() { <-c.slots })
	return c.Conn.Close()
}

// The orders, as they stand in a request's body.
type (
	holdOrder struct {
		Target message.Target `json:"target"`
		Reason string         `json:"reason"`
	}
	releaseOrder struct {
		Target message.Target `json:"target"`
		Bury   bool           `json:"bury"`
	}
	replayOrder struct {
		Message message.ID `json:"message"`
	}
	dismissOrder struct {
		Message message.ID `json:"message"`
		Reason  string     `json:"reason"`
	}
	resubmitOrder struct {
		Message message.ID `json:"message"`
		Own     bool       `json:"own"` // with its own bytes
		Body    []byte     `json:"body"`
	}
	purgeOrder struct {
		Done time.Time `json:"done_before,omitzero"`
		Dead time.Time `json:"dead_before,omitzero"`
	}
	nothing struct{}
)

// failure is the answer to an order that was not carried out.
type failure struct {
	Error string `json:"error"`
	Kind  string `json:"kind,omitempty"` // of an error that a caller may ask for
}

// kinds are the errors that keep their identity on the way.
var kinds = map[string]error{
	"not_found":      store.ErrNotFound,
	"nothing_failed": store.ErrNothingFailed,
	"undeclared":     store.ErrUndeclared,
	"unknown":        store.ErrUnknown,
	"starting":       ErrStarting,
	"stopping":       ErrStopping,
	"refused":        ErrRefused,
}

// handler answers orders whose bodies have most bytes.
func handler(c Commands, most int64) http.Handler {
	mux := http.NewServeMux()
	order(mux, most, "POST /hold", func(ctx context.Context, o holdOrder) (nothing, error) {
		return nothing{}, c.Hold(ctx, o.Target, o.Reason)
	})
	order(mux, most, "POST /release", func(ctx context.Context, o releaseOrder) ([]message.Hold, error) {
		return c.Release(ctx, o.Target, o.Bury)
	})
	order(mux, most, "POST /replay", func(ctx context.Context, o replayOrder) (message.Replay, error) {
		return c.Replay(ctx, o.Message)
	})
	order(mux, most, "POST /dismiss", func(ctx context.Context, o dismissOrder) (int64, error) {
		return c.Dismiss(ctx, o.Message, o.Reason)
	})
	order(mux, most, "POST /resubmit", func(ctx context.Context, o resubmitOrder) (message.ID, error) {
		if o.Own {
			o.Body = nil
		} else if o.Body == nil {
			o.Body = []byte{}
		}
		return c.Resubmit(ctx, o.Message, o.Body)
	})
	order(mux, most, "POST /purge", func(ctx context.Context, o purgeOrder) (store.Purged, error) {
		return c.Purge(ctx, o.Done, o.Dead)
	})
	order(mux, most, "POST /reload", func(ctx context.Context, _ nothing) (Reloaded, error) { return c.Reload(ctx) })
	order(mux, most, "POST /status", func(ctx context.Context, _ nothing) (Status, error) { return c.Status(ctx) })
	return mux
}

// order adds an order to the ones that are answered.
func order[Q, A any](mux *http.ServeMux, most int64, pattern string, do func(context.Context, Q) (A, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var question Q
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, most))
		d.DisallowUnknownFields()
		if err := d.Decode(&question); err != nil {
			answer(w, http.StatusBadRequest, failure{Error: "the order cannot be read: " + err.Error()})
			return
		}
		if _, err := d.Token(); err != io.EOF {
			answer(w, http.StatusBadRequest, failure{Error: "the order goes on behind its end"})
			return
		}
		result, err := do(r.Context(), question)
		if err != nil {
			answer(w, http.StatusConflict, failureOf(err))
			return
		}
		answer(w, http.StatusOK, result)
	})
}

func answer(w http.ResponseWriter, status int, what any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(what) // who does not read it does not get it
}

func failureOf(err error) failure {
	f := failure{Error: err.Error()}
	for kind, is := range kinds {
		if errors.Is(err, is) {
			f.Kind = kind
		}
	}
	return f
}
