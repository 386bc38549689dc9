package mllp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/gate"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/room"
)

// What a connection that is about to close may still send before it is cut, so that the answer that it was given is not
// thrown away by a reset: a TCP stack that is closed with unread bytes resets, and a reset discards what the other side
// has not read (RFC 1122, 4.2.2.13).
const (
	lingerTime  = time.Second
	lingerBytes = 1 << 20
)

// errHangUp ends a connection of which everything has been said.
var errHangUp = errors.New("hang up")

// peer is one connection of a sender.
type peer struct {
	cfg    InboundConfig
	sink   connect.Sink
	gate   *gate.Gate
	conn   *gate.Conn
	blocks *frameReader
	addr   string
	log    *slog.Logger
}

func newPeer(in *Inbound, conn *gate.Conn) *peer {
	addr := conn.RemoteAddr().String()
	return &peer{
		cfg: in.cfg, sink: in.sink, gate: in.gate, conn: conn, addr: addr,
		blocks: newFrameReader(conn, in.cfg.MaxMessage),
		log:    in.cfg.Log.With("peer", addr),
	}
}

// serve takes blocks one after the other until the connection, or the inbound, ends.
func (p *peer) serve(commit context.Context) {
	for !p.gate.Stopped() {
		err := p.next(commit)
		switch {
		case err == nil:
		case errors.Is(err, errHangUp), p.gate.Stopped():
			return
		default:
			p.log.Info("connection closed", "cause", err)
			return
		}
	}
}

// next takes one block: it reads, commits and answers. An error ends the connection.
func (p *peer) next(commit context.Context) error {
	p.readWithin(p.cfg.IdleTimeout)
	if err := p.blocks.begin(); err != nil {
		return p.noBlock(commit, err)
	}
	until := time.Now().Add(p.cfg.FrameTimeout)
	_ = p.conn.SetReadDeadline(until) // an error here comes again from the read
	in := p.cfg.Room.Body(p.cfg.MaxMessage+slack, until, p.conn.Done())
	defer in.Free()
	body, err := p.blocks.bodyIn(in)
	if err != nil {
		return p.noEnd(commit, body, err)
	}
	h, err := hl7.ParseHeader(body)
	if err != nil {
		return p.refuse(commit, hl7.Header{}, err.Error(), int64(len(body)))
	}
	p.conn.Prove()
	return p.receive(commit, h, body)
}

// noBlock is called where a block should have begun and did not.
func (p *peer) noBlock(commit context.Context, err error) error {
	switch {
	case p.gate.Stopped(), errors.Is(err, io.EOF):
		return errHangUp
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no message for %v", p.cfg.IdleTimeout)
	case errors.Is(err, errUnframed), errors.Is(err, errStray):
		p.record(commit, err.Error(), int64(p.blocks.in.Buffered()))
	}
	return err
}

// noEnd is called where a block has begun and not ended; body is the part that arrived. It was not acknowledged, so its
// sender still has it.
func (p *peer) noEnd(commit context.Context, body []byte, err error) error {
	switch {
	case p.gate.Stopped():
		return errHangUp
	case errors.Is(err, errTooLarge):
		return p.tooLarge(commit, body)
	case errors.Is(err, room.ErrFull), errors.Is(err, room.ErrGone):
		return err // turned away for now, and not for good
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("no block end within %v", p.cfg.FrameTimeout)
	default:
		err = fmt.Errorf("connection ended inside a block: %w", err)
	}
	p.record(commit, err.Error(), int64(len(body)))
	return err
}

// tooLarge refuses a body over the limit and closes: the rest of it is not read. Asking again cannot help, so a sender
// whose header was seen is told so.
func (p *peer) tooLarge(commit context.Context, body []byte) error {
	reason := fmt.Sprintf("body is over the limit of %d bytes", p.cfg.MaxMessage)
	if h, err := hl7.ParseHeader(body); err == nil {
		if err := p.refuse(commit, h, reason, int64(len(body))); err != nil {
			return err
		}
		p.linger()
		return errHangUp
	}
	p.record(commit, reason, int64(len(body)))
	return errors.New(reason)
}

// receive commits one message, or the messages of a batch, then acknowledges it. What was not committed, or may not have been, gets no answer.
func (p *peer) receive(commit context.Context, h hl7.Header, body []byte) error {
	ids, err := connect.Receive(commit, p.sink, message.Incoming{
		Inbound: p.cfg.Name, Body: body, Peer: p.addr, Received: time.Now().UTC(),
	}, p.cfg.Split)
	if errors.Is(err, hl7.ErrBatch) {
		return p.refuse(commit, h, err.Error(), int64(len(body)))
	}
	if err != nil {
		return fmt.Errorf("message not acknowledged: %w", err)
	}
	code, want := p.cfg.Ack.taken(h)
	if !want {
		return nil
	}
	if err := p.write(hl7.Ack(h, code, "", newControlID(), time.Now())); err != nil {
		return fmt.Errorf("acknowledge message %d: %w", ids[0], err)
	}
	return nil
}

// refuse records a refusal and then tells the sender, with AR; h without a segment means that there was no header.
func (p *peer) refuse(commit context.Context, h hl7.Header, reason string, size int64) error {
	if !p.record(commit, reason, size) {
		return errors.New("refusal not recorded, so not answered")
	}
	code, want := p.cfg.Ack.refused(h)
	if !want {
		return nil
	}
	answer := hl7.AckUnknown(reason, newControlID(), time.Now())
	if h.Segment != "" {
		answer = hl7.Ack(h, code, reason, newControlID(), time.Now())
	}
	if err := p.write(answer); err != nil {
		return fmt.Errorf("answer a refusal: %w", err)
	}
	return nil
}

// record hands a refusal to the sink and says whether it is recorded.
func (p *peer) record(commit context.Context, reason string, size int64) bool {
	return p.gate.Record(commit, p.addr, reason, size)
}

// taken is the answer to a committed message, and whether its sender wants one. In enhanced mode the accept
// acknowledgement goes first; a sender that asks for an application acknowledgement alone gets AA for the commit, because
// there is no later answer.
func (m AckMode) taken(h hl7.Header) (code string, want bool) {
	return m.answer(h, hl7.AA, hl7.CA, "SU")
}

// refused is the answer to a message that can never be taken.
func (m AckMode) refused(h hl7.Header) (code string, want bool) {
	return m.answer(h, hl7.AR, hl7.CR, "ER")
}

// answer chooses between the application's code and the commit's; when is the condition beside AL that asks for it.
func (m AckMode) answer(h hl7.Header, application, commit, when string) (string, bool) {
	switch {
	case m == AckNone:
		return "", false
	case m == AckOriginal, h.AcceptAck == "" && h.AppAck == "":
		return application, true
	case h.AcceptAck == "AL", h.AcceptAck == when:
		return commit, true
	case h.AppAck == "AL", h.AppAck == when:
		return application, true
	}
	return "", false
}

// readWithin sets the deadline of what is read next.
func (p *peer) readWithin(d time.Duration) {
	_ = p.conn.SetReadDeadline(time.Now().Add(d)) // an error here comes again from the read
}

// write sends one answer.
func (p *peer) write(answer []byte) error {
	_ = p.conn.SetWriteDeadline(time.Now().Add(p.cfg.WriteTimeout)) // an error here comes again from the write
	_, err := p.conn.Write(frame(answer))
	return err
}

// linger closes the sending half and reads a little of what the peer still sends, to let it see the last answer.
func (p *peer) linger() {
	if p.conn.CloseWrite() != nil {
		return
	}
	p.readWithin(lingerTime)
	_, _ = io.CopyN(io.Discard, p.blocks.in, lingerBytes) // its end, however it comes, is the end of the linger
}
