package tree

import (
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

// Red on Windows with FILE_FLAG_OVERLAPPED left out of linkPipe.
func TestLinkDeadlines(t *testing.T) {
	l := newLink(t)
	if err := l.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 && runtime.GOOS != "windows" {
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
		_, err := l.Write(make([]byte, 1<<20))
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
