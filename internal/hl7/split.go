package hl7

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
)

// ErrNoMessage is the error of a text in which no line begins a message.
var ErrNoMessage = errors.New("no line begins MSH, BHS or FHS")

// Split takes a text apart into its messages and returns them in order, byte for byte. A message begins at a line that
// begins MSH, BHS or FHS, the first one behind a byte order mark if there is one; a line ends at CR, LF or CRLF. A batch
// (FHS to FTS, BHS to BTS) is one message. A text that holds one message alone ends with it, blank lines included; among
// several, the blank lines between them and behind the last belong to none, and nor do those before the first. Anything
// else before the first message is an error.
//
// max bounds a message, in bytes. An error ends the sequence. Each message is the caller's.
func Split(r io.Reader, max int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s := &splitter{max: max}
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, 0, min(64<<10, max+3)), max+3)
		lines.Split(line)
		for lines.Scan() {
			whole, err := s.add(lines.Bytes())
			if whole != nil && !yield(whole, nil) {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
		err := lines.Err()
		switch {
		case errors.Is(err, bufio.ErrTooLong):
			yield(nil, s.tooLong())
		case err != nil:
			yield(nil, err)
		case s.count == 0:
			yield(nil, ErrNoMessage)
		default:
			yield(s.last())
		}
	}
}

// line is a bufio.SplitFunc: one line with its end.
func line(data []byte, atEOF bool) (int, []byte, error) {
	i := bytes.IndexAny(data, "\r\n")
	switch {
	case i < 0 && !atEOF:
		return 0, nil, nil
	case i < 0 && len(data) == 0:
		return 0, nil, nil
	case i < 0:
		return len(data), data, nil
	case data[i] == '\r' && i+1 == len(data) && !atEOF:
		return 0, nil, nil // an LF may follow
	case data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n':
		return i + 2, data[:i+2], nil
	}
	return i + 1, data[:i+1], nil
}

type splitter struct {
	max     int
	lines   int
	count   int    // messages begun
	message []byte // so far; nil before the first one
	blank   []byte // blank lines behind it, which belong to it only if more of it follows, or nothing and it is alone
	trailer string // what ends the batch that it is; empty outside of one
	over    bool   // the batch's trailer has come
}

var mark = []byte("\xef\xbb\xbf")

// add takes one line and returns the message that it ends, if it does.
func (s *splitter) add(l []byte) (whole []byte, err error) {
	s.lines++
	text := bytes.TrimRight(l, "\r\n")
	if s.lines == 1 {
		text = bytes.TrimPrefix(text, mark)
	}
	name := string(text[:min(3, len(text))])
	if s.begins(name) {
		whole = s.message
		s.count++
		s.message, s.blank, s.trailer, s.over = nil, nil, "", false
		switch name {
		case "FHS":
			s.trailer = "FTS"
		case "BHS":
			s.trailer = "BTS"
		}
	} else if s.message == nil {
		if len(bytes.TrimSpace(text)) == 0 {
			return nil, nil
		}
		return nil, fmt.Errorf("line %d: %w", s.lines, ErrNoMessage)
	}
	if len(text) == 0 {
		if len(s.message)+len(s.blank) <= s.max { // more of them could not belong to it
			s.blank = append(s.blank, l...)
		}
		return whole, nil
	}
	s.message = append(append(s.message, s.blank...), l...)
	s.blank = s.blank[:0]
	if s.trailer != "" && name == s.trailer {
		s.over = true
	}
	if len(s.message) > s.max {
		return whole, s.tooLong()
	}
	return whole, nil
}

// last is the message that the text's end ends.
func (s *splitter) last() ([]byte, error) {
	if s.count > 1 {
		return s.message, nil
	}
	if len(s.message)+len(s.blank) > s.max {
		return nil, s.tooLong()
	}
	return append(s.message, s.blank...), nil
}

// begins says whether a line with this name begins a message, where the text stands.
func (s *splitter) begins(name string) bool {
	inBatch := s.trailer != "" && !s.over
	switch name {
	case "FHS":
		return true
	case "BHS":
		return !inBatch || s.trailer == "BTS"
	case "MSH":
		return !inBatch
	}
	return false
}

func (s *splitter) tooLong() error {
	return fmt.Errorf("message %d, which ends behind line %d, is over %d bytes", max(s.count, 1), s.lines, s.max)
}
