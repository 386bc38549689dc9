package http

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	nethttp "net/http"
	"os"
	"strings"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/room"
)

// retryAfter is what a sender that is to come again is told, in seconds.
const retryAfter = "5"

// request is one request and its one answer.
type request struct {
	in     *Inbound
	commit context.Context // outlives the sender, and the stop by a little
	w      nethttp.ResponseWriter
	r      *nethttp.Request
	visit  *visit
	peer   string
}

func (in *Inbound) serve(commit context.Context, w nethttp.ResponseWriter, r *nethttp.Request) {
	v := r.Context().Value(visitKey{}).(*visit)
	v.begun.Store(false)
	x := request{in: in, commit: commit, w: w, r: r, visit: v, peer: v.RemoteAddr().String()}
	if !in.running.enter() {
		x.later("stopping")
		return
	}
	defer in.running.leave()
	if status, reason := x.objection(); status != 0 {
		x.turnAway(status, reason)
		return
	}
	x.take()
}

// objection is what stands against a request before its body is read; status 0: nothing.
func (x *request) objection() (status int, reason string) {
	h := x.w.Header()
	switch {
	case x.r.URL.Path != x.in.cfg.Path:
		return nethttp.StatusNotFound, "messages are not taken on this path"
	case x.r.Method != nethttp.MethodPost && x.r.Method != nethttp.MethodPut:
		h.Set("Allow", "POST, PUT")
		return nethttp.StatusMethodNotAllowed, "messages are taken by POST and PUT"
	case !x.in.auth.passes(x.r.Header):
		if x.in.auth.scheme != "" {
			h.Set("WWW-Authenticate", x.in.auth.scheme)
		}
		return nethttp.StatusUnauthorized, "the header that names the sender is missing or wrong"
	case encoded(x.r.Header):
		return nethttp.StatusUnsupportedMediaType, "bodies are taken as they are: no Content-Encoding"
	case x.r.ContentLength > x.in.cfg.MaxMessage:
		return nethttp.StatusRequestEntityTooLarge, x.in.overLimit()
	}
	return 0, ""
}

func (in *Inbound) overLimit() string {
	return fmt.Sprintf("body is over the limit of %d bytes", in.cfg.MaxMessage)
}

// encoded says whether the body is compressed, or anything else than itself.
func encoded(h nethttp.Header) bool {
	for _, coding := range h["Content-Encoding"] {
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return true
		}
	}
	return false
}

// turnAway refuses a request whose body was not read. A message is recorded each time, what anybody may ask of a server now
// and then.
func (x *request) turnAway(status int, reason string) {
	size := max(x.r.ContentLength, 0)
	record := x.in.gate.Record
	switch status {
	case nethttp.StatusNotFound, nethttp.StatusMethodNotAllowed, nethttp.StatusUnauthorized:
		record = x.in.gate.RecordOnce
	}
	if !record(x.commit, x.peer, fmt.Sprintf("%d: %s", status, reason), size) {
		x.later("the refusal is not recorded")
		return
	}
	x.w.Header().Set("Connection", "close") // its body is not read
	x.answer(status, map[string]any{"error": reason})
}

// take reads the body, commits it, and answers.
func (x *request) take() {
	most := x.in.cfg.MaxMessage
	in := x.in.cfg.Room.Body(most+1, time.Now().Add(x.in.cfg.BodyTimeout), x.visit.Done()) // one more, to see the end behind the last
	defer in.Free()
	if err := readBody(nethttp.MaxBytesReader(x.w, x.r.Body, most), in); err != nil {
		x.noBody(in.Len(), err)
		return
	}
	if in.Len() == 0 {
		x.refuse(nethttp.StatusBadRequest, "body is empty", 0)
		return
	}
	x.receive(in.Bytes())
}

// noBody is called where a body had no end that could be waited for; size is what arrived of it.
func (x *request) noBody(size int64, err error) {
	var over *nethttp.MaxBytesError
	switch {
	case errors.As(err, &over):
		x.refuse(nethttp.StatusRequestEntityTooLarge, x.in.overLimit(), size)
		return
	case errors.Is(err, room.ErrFull):
		x.w.Header().Set("Connection", "close")
		x.later(err.Error())
		return
	case x.in.gate.Stopped():
		x.hangUp("stopping")
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("no end of the body within %v", x.in.cfg.HeaderTimeout+x.in.cfg.BodyTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("connection ended inside a body: %w", err)
	default:
		err = fmt.Errorf("read body: %w", err)
	}
	x.in.gate.Record(x.commit, x.peer, err.Error(), size)
	x.hangUp(err.Error())
}

// refuse records a message that was turned away for good and then tells the sender.
func (x *request) refuse(status int, reason string, size int64) {
	if !x.in.gate.Record(x.commit, x.peer, reason, size) {
		x.later("the refusal is not recorded")
		return
	}
	x.answer(status, map[string]any{"error": reason})
}

// receive commits one message, or the messages of a batch, then acknowledges it. A body without an HL7 header is a message like any other.
func (x *request) receive(body []byte) {
	x.visit.Prove()
	ids, err := connect.Receive(x.commit, x.in.sink, message.Incoming{
		Inbound: x.in.cfg.Name, Body: body, Peer: x.peer, Received: time.Now().UTC(),
	}, x.in.cfg.Split)
	switch {
	case errors.Is(err, hl7.ErrBatch):
		x.refuse(nethttp.StatusBadRequest, err.Error(), int64(len(body)))
	case errors.Is(err, connect.ErrUnknown):
		x.hangUp(err.Error())
	case err != nil:
		x.in.cfg.Log.Info("message not acknowledged", "peer", x.peer, "cause", err)
		x.later("not committed")
	case len(ids) > 1:
		x.answer(nethttp.StatusOK, map[string]any{"ids": ids})
	default:
		x.answer(nethttp.StatusOK, map[string]any{"id": ids[0]})
	}
}

// later asks the sender to come again: nothing was committed.
func (x *request) later(why string) {
	x.w.Header().Set("Retry-After", retryAfter)
	x.answer(nethttp.StatusServiceUnavailable, map[string]any{"error": why + "; send it again"})
}

// hangUp closes the connection without an answer.
func (x *request) hangUp(why string) {
	x.in.cfg.Log.Info("connection closed", "peer", x.peer, "cause", why)
	panic(nethttp.ErrAbortHandler)
}

// answer writes the one answer.
func (x *request) answer(status int, what map[string]any) {
	text, _ := json.Marshal(what) // strings and integers
	text = append(text, '\n')
	// An error here, or in the write, is a connection that is gone.
	_ = nethttp.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(x.in.cfg.WriteTimeout))
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(status)
	_, _ = x.w.Write(text)
}
