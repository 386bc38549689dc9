package mllp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"coppice.dev/coppice/internal/hl7"
)

// What a Receiver's answer function may return beside a code of package hl7.
const (
	Silence = ""        // no answer; the connection stays
	HangUp  = "hang up" // no answer; the connection is closed
)

// Receiver is a small MLLP receiver for tests and demonstrations: it keeps nothing. It caps bodies at
// DefaultMaxMessage and bears any number of connections.
type Receiver struct {
	listener net.Listener
	answer   func(body []byte) (code string)
	done     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// NewReceiver listens on addr, "host:port", and calls answer with every body, which answer may keep. The code that it
// returns is sent back: hl7.AA to hl7.CR, Silence or HangUp. Calls of one connection follow one another, those of several
// overlap; a call may wait, to answer late, but must return before Close can.
func NewReceiver(addr string, answer func(body []byte) (code string)) (*Receiver, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("mllp receiver: %w", err)
	}
	r := &Receiver{listener: l, answer: answer, conns: map[net.Conn]struct{}{}}
	r.done.Go(r.accept)
	return r, nil
}

// Addr is the address that it listens on, with the real port.
func (r *Receiver) Addr() string { return r.listener.Addr().String() }

func (r *Receiver) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return // closed; a demonstration need not outlive other errors
		}
		r.mu.Lock()
		if r.closed {
			_ = conn.Close() // never served
		} else {
			r.conns[conn] = struct{}{}
			r.done.Go(func() { r.serve(conn) })
		}
		r.mu.Unlock()
	}
}

func (r *Receiver) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close() // what mattered was written before
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.conns, conn)
	}()
	blocks := newFrameReader(conn, DefaultMaxMessage)
	for {
		if blocks.begin() != nil {
			return
		}
		body, err := blocks.body()
		if err != nil {
			return
		}
		switch code := r.answer(body); code {
		case Silence:
		case HangUp:
			return
		default:
			if err := reply(conn, body, code); err != nil {
				return
			}
		}
	}
}

// reply writes one answer.
func reply(conn net.Conn, body []byte, code string) error {
	h, err := hl7.ParseHeader(body)
	if err != nil {
		h = hl7.Header{Segment: "MSH"}
	}
	if err := conn.SetWriteDeadline(time.Now().Add(DefaultWriteTimeout)); err != nil {
		return err
	}
	_, err = conn.Write(frame(hl7.Ack(h, code, "", newControlID(), time.Now())))
	return err
}

// Run closes the receiver when ctx is done.
func (r *Receiver) Run(ctx context.Context) error {
	<-ctx.Done()
	return r.Close()
}

// Close stops listening, ends all connections and waits for the calls in progress. It may be called more than once.
func (r *Receiver) Close() error {
	r.mu.Lock()
	r.closed = true
	_ = r.listener.Close() // an error here means that it is closed
	for conn := range r.conns {
		_ = conn.Close() // its reader returns
	}
	r.mu.Unlock()
	r.done.Wait()
	return nil
}
