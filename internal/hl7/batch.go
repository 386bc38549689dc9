package hl7

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// MaxParts caps the messages of one batch: they are committed in one piece, for which others wait.
const MaxParts = 10_000

// ErrBatch is returned for a batch that cannot be taken apart without doubt; test with errors.Is.
var ErrBatch = errors.New("malformed batch")

// Messages takes a batch apart, FHS to FTS or BHS to BTS, and returns its messages in order. Each is a part of body, byte for
// byte, without blank lines behind it; the segments of the envelope (FHS, BHS, BTS, FTS) belong to none. A file holds batches
// or, without BHS, messages. Where BTS-1 counts the messages of its batch, or FTS-1 the batches of the file (messages without
// BHS are one), the number has to be right. The error is ErrBatch, wrapped, for whatever else stands there: an envelope that
// is not closed, or has no message in it, and text that belongs to no message.
func Messages(body []byte) ([][]byte, error) {
	b := batch{}
	rest := bytes.TrimPrefix(body, mark)
	for line := 1; len(rest) > 0; line++ {
		n := len(rest)
		if i := bytes.IndexAny(rest, "\r\n"); i >= 0 {
			n = i + 1
			if rest[i] == '\r' && n < len(rest) && rest[n] == '\n' {
				n++
			}
		}
		if err := b.add(rest[:n]); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrBatch, line, err)
		}
		rest = rest[n:]
	}
	if err := b.whole(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBatch, err)
	}
	return b.parts, nil
}

// Apart is Messages for a batch, and nothing for whatever else a body is.
func Apart(body []byte) ([][]byte, error) {
	if h, err := ParseHeader(body); err != nil || !h.Batch() {
		return nil, nil
	}
	return Messages(body)
}

// batch is where the reading of one stands.
type batch struct {
	sep            byte   // of the envelope
	file, open     bool   // between FHS and FTS; between BHS and BTS
	over           bool   // the envelope is closed
	begun          bool   // a message has begun and not ended
	part           []byte // of it; grows within the body
	ends           int    // behind its last line that is not blank
	parts          [][]byte
	inBatch, loose int // messages since BHS; those in the file without BHS
	batches        int
}

// add takes one line.
func (b *batch) add(line []byte) error {
	text := bytes.TrimRight(line, "\r\n")
	name := b.segment(text)
	switch name {
	case "FHS", "BHS", "BTS", "FTS":
		b.end()
		return b.envelope(name, text)
	case "MSH":
		b.end()
		return b.begin(line)
	}
	blank := len(bytes.TrimSpace(text)) == 0
	switch {
	case b.begun:
		b.part = b.part[:len(b.part)+len(line)] // which follows it in the body
		if !blank {
			b.ends = len(b.part)
		}
	case !blank:
		return errors.New("text that belongs to no message")
	}
	return nil
}

// segment is the name of a line that is of the envelope, or begins a message; empty for any other.
func (b *batch) segment(text []byte) string {
	if len(text) < 3 {
		return ""
	}
	switch name := string(text[:3]); name {
	case "FHS", "BHS", "MSH":
		if len(text) > 3 && separator(text[3]) {
			return name
		}
	case "BTS", "FTS":
		if len(text) == 3 || text[3] == b.sep {
			return name
		}
	}
	return ""
}

func (b *batch) begin(line []byte) error {
	switch {
	case !b.file && !b.open:
		return errors.New("a message outside of the batch")
	case len(b.parts) == MaxParts:
		return fmt.Errorf("more than %d messages", MaxParts)
	}
	if _, err := ParseHeader(line); err != nil {
		return err
	}
	b.begun, b.part, b.ends = true, line, len(line)
	if b.open {
		b.inBatch++
	} else {
		b.loose++
	}
	b.parts = append(b.parts, nil)
	return nil
}

// end ends the message that has begun, if one has.
func (b *batch) end() {
	if b.begun {
		b.parts[len(b.parts)-1] = b.part[:b.ends:b.ends]
		b.begun = false
	}
}

func (b *batch) envelope(name string, text []byte) error {
	switch name {
	case "FHS":
		if b.file || b.open || b.over {
			return errors.New("FHS inside of the batch, or behind it")
		}
		b.file, b.sep = true, text[3]
	case "BHS":
		if b.open || b.over {
			return errors.New("BHS inside of a batch, or behind it")
		}
		b.open, b.inBatch = true, 0
		b.batches++
		b.sep = text[3]
	case "BTS":
		if !b.open {
			return errors.New("BTS without BHS")
		}
		b.open, b.over = false, !b.file
		return b.counts("BTS", text, b.inBatch)
	case "FTS":
		if !b.file {
			return errors.New("FTS without FHS")
		}
		if b.open {
			return errors.New("FTS before BTS")
		}
		b.file, b.over = false, true
		if b.loose > 0 {
			b.batches++
		}
		return b.counts("FTS", text, b.batches)
	}
	return nil
}

// counts compares the first field of a trailer, if it has one, with what it counts.
func (b *batch) counts(name string, text []byte, have int) error {
	field, _, _ := bytes.Cut(text[min(4, len(text)):], []byte{b.sep})
	if field = bytes.TrimSpace(field); len(field) == 0 {
		return nil
	}
	if n, err := strconv.ParseUint(string(field), 10, 32); err != nil || n != uint64(have) {
		return fmt.Errorf("%s-1 says %.20q, and there are %d", name, field, have)
	}
	return nil
}

// whole says what is missing at the end.
func (b *batch) whole() error {
	switch {
	case b.open:
		return errors.New("no BTS")
	case b.file:
		return errors.New("no FTS")
	case len(b.parts) == 0:
		return errors.New("no message in it")
	}
	return nil
}
