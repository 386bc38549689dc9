package sqlite

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"testing"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func TestReaderBesideLiveWriter(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	r, err := OpenReader(t.Context(), path)
	must(t, err)
	for range 3 {
		id := receive(t, s, "adt", "x")
		tl, err := r.Timeline(t.Context(), id) // what is committed is seen at once
		must(t, err)
		if tl.Message.Disposition != message.Received {
			t.Errorf("the message is %s", tl.Message.Disposition)
		}
	}
	must(t, s.Close()) // the reader does not keep the engine from closing
	counts, err := r.Counts(t.Context())
	must(t, err)
	if counts[message.Received] != 3 {
		t.Errorf("got counts %v", counts)
	}
	must(t, r.Close())
	if _, err := r.Counts(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := r.Close(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

// The database's bytes are the same after a reader as before: beside nobody, and after a crash, when there is a log that
// an owner would write back. Red when OpenReader opens read-write.
func TestReaderWritesNothing(t *testing.T) {
	path := newPath(t)
	must(t, openAt(t, path, Options{}).Close())
	for _, crash := range []bool{false, true} {
		if crash {
			c := startChild(t, "write", path)
			for range 50 {
				c.lines.Scan()
			}
			c.kill(t)
		}
		before := readFile(t, path)
		r, err := OpenReader(t.Context(), path)
		must(t, err)
		list, err := r.Messages(t.Context(), store.Query{})
		must(t, errors.Join(err, r.Close()))
		if got := len(list) > 0; got != crash {
			t.Errorf("after a crash: %v, read messages: %v", crash, got)
		}
		if !bytes.Equal(readFile(t, path), before) {
			t.Errorf("after a crash: %v, the reader changed the database", crash)
		}
	}
	if _, err := os.Stat(path + ".lock"); err != nil {
		t.Error(err)
	}
	openAt(t, path, Options{})
}

func TestReaderErrors(t *testing.T) {
	path := newPath(t)
	_, err := OpenReader(t.Context(), path)
	var open *OpenError
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &open) || open.Hint == "" {
		t.Errorf("no file: got error %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenReader made the file: %v", err)
	}
	if _, err := OpenReader(t.Context(), t.TempDir()); !errors.Is(err, ErrForeign) {
		t.Errorf("a folder: got error %v", err)
	}
	must(t, os.WriteFile(path, nil, 0o600))
	if _, err := OpenReader(t.Context(), path); !errors.Is(err, ErrForeign) {
		t.Errorf("an empty file: got error %v", err)
	}
}
