package tree

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"time"
)

func newLink(t *testing.T) *Link {
	t.Helper()
	l, err := NewLink()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Started(); l.Close() })
	return l
}

func TestLinkPending(t *testing.T) {
	l := newLink(t)
	want := func(p Pending) {
		t.Helper()
		if got := l.Pending(); got != p {
			t.Fatalf("pending %d, want %d", got, p)
		}
	}
	want(Nothing)
	if _, err := l.Files()[1].Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	want(Bytes)
	want(Bytes) // nothing was read
	l.Started()
	want(Bytes) // hung up, and yet not all is read
	if n, err := l.Read(make([]byte, 9)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	want(HungUp)
	if _, err := l.Read(make([]byte, 9)); err != io.EOF {
		t.Fatalf("read: %v", err)
	}
	l.Close()
	want(HungUp)
	if err := l.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// One look tells of the link and of other pipes, closed ones included. Red with look that asks for the link alone, and with the
// bytes of the others taken for the link's.
func TestLinkLook(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("missing: a look at any pipe but the link")
	}
	l := newLink(t)
	var read, write [2]*os.File
	for i := range read {
		var err error
		if read[i], write[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		defer read[i].Close()
		defer write[i].Close()
	}
	want := func(p Pending, unread bool) {
		t.Helper()
		if gotP, gotU := l.Look(read[:]...); gotP != p || gotU != unread {
			t.Fatalf("pending %d and %v, want %d and %v", gotP, gotU, p, unread)
		}
	}
	want(Nothing, false)
	write[1].Write([]byte("x"))
	want(Nothing, true)
	l.Files()[1].Write([]byte("y"))
	want(Bytes, true)
	read[1].Close()
	want(Bytes, false)
	write[0].Close()
	want(Bytes, false) // an end is nothing to read
}

// What was taken out of the pipe with what was asked for is not lost, and no look misses it. Red with Pending that looks
// into the pipe alone: a worker's second answer to one request would pass for the answer to the next.
func TestLinkReadsAhead(t *testing.T) {
	l := newLink(t)
	sent := make([]byte, 3*readAhead)
	for i := range sent {
		sent[i] = byte(i / 7)
	}
	if _, err := l.Files()[1].Write(sent); err != nil {
		t.Fatal(err)
	}
	l.Started()
	var got []byte
	for size := 1; len(got) < len(sent); size *= 2 {
		b := make([]byte, min(size, 1000, len(sent)-len(got)))
		if _, err := io.ReadFull(l, b); err != nil {
			t.Fatal(err)
		}
		got = append(got, b...)
		if p := l.Pending(); len(got) < len(sent) && p != Bytes {
			t.Fatalf("pending %d behind %d of %d bytes", p, len(got), len(sent))
		}
	}
	if !bytes.Equal(got, sent) {
		t.Error("other bytes came out than went in")
	}
	if p := l.Pending(); p != HungUp {
		t.Errorf("pending %d at the end", p)
	}
	if _, err := l.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v", err)
	}
}

// Red on Windows with FILE_FLAG_OVERLAPPED left out of linkPipe.
func TestLinkDeadlines(t *testing.T) {
	l := newLink(t)
	if err := l.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Write(make([]byte, 4<<20)); !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 && runtime.GOOS != "windows" {
		t.Errorf("write to a full pipe: %d, %v", n, err)
	}
	if _, err := l.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	l.CloseWrite()
	// Red if the closed direction's error is passed on: an engine that has asked for the end could bound no read.
	if err := l.SetDeadline(time.Time{}); err != nil {
		t.Errorf("deadline after CloseWrite: %v", err)
	}
	l.Close()
	if err := l.SetDeadline(time.Time{}); err == nil {
		t.Error("a deadline could be set after Close")
	}
}

func TestLinkCloseEndsCalls(t *testing.T) {
	l := newLink(t)
	ends := make(chan error, 2)
	begun := make(chan struct{}, 2)
	go func() {
		begun <- struct{}{}
		_, err := l.Read(make([]byte, 1))
		ends <- err
	}()
	go func() {
		begun <- struct{}{}
		_, err := l.Write(make([]byte, 4<<20))
		ends <- err
	}()
	<-begun
	<-begun
	l.Close()
	for range 2 {
		if err := <-ends; !errors.Is(err, os.ErrClosed) {
			t.Errorf("ended by %v", err)
		}
	}
}
