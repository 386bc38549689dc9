package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/room"
)

// openWithin is how long opening a file may take. A stranger who puts a FIFO in a file's place between the look and the
// opening makes it wait for ever.
const openWithin = 2 * time.Second

// errNotQuiet is what a file is that changed while it was read.
var errNotQuiet = errors.New("file changed while it was read")

// look takes what is quiet, in the order of names, and says when to look again. An error means that the sink or the
// folder failed: the rest of the files wait for the next look, so that their order holds.
func (in *Inbound) look(ctx, commit context.Context) (time.Duration, error) {
	root, err := os.OpenRoot(in.cfg.Dir)
	if err != nil {
		return in.cfg.Poll, err
	}
	defer root.Close()
	ready, wait, err := in.survey(root)
	if err != nil {
		return in.cfg.Poll, err
	}
	for _, name := range ready {
		if ctx.Err() != nil {
			return wait, nil
		}
		s, err := in.take(ctx, commit, root, name, in.seen[name])
		if err != nil {
			return in.cfg.Poll, fmt.Errorf("%s: %w", name, err)
		}
		if s.done || s.noted {
			in.seen[name] = s
		} else {
			delete(in.seen, name)
		}
	}
	return wait, nil
}

// survey brings in.seen up to date and returns the names that are quiet, sorted, and how long until the next may be.
//
// All files of one survey are judged by one time. Each by its own would let a later name become quiet before an earlier
// one that was first seen in the same survey (seen with 1013 files under the race detector). A file has stood still from
// the end of the survey that first saw it to the begin of this one: at least that long, however slow the folder is.
func (in *Inbound) survey(root *os.Root) (ready []string, wait time.Duration, err error) {
	begin := time.Now()
	entries, err := fs.ReadDir(root.FS(), ".") // sorted by name
	if err != nil {
		return nil, 0, err
	}
	present := make(map[string]sighting, len(in.seen))
	var fresh []string
	wait = in.cfg.Poll
	for _, entry := range entries {
		if !in.wanted(entry) {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			continue // gone since
		}
		name := entry.Name()
		s, ok := in.seen[name]
		// A modification time long ago proves nothing: copying tools set it before they have written all.
		if !ok || s.size != info.Size() || !s.mtime.Equal(info.ModTime()) {
			present[name] = sighting{size: info.Size(), mtime: info.ModTime()}
			fresh = append(fresh, name)
			wait = min(wait, in.cfg.Stable)
			continue
		}
		present[name] = s
		if left := in.cfg.Stable - begin.Sub(s.since); left > 0 {
			wait = min(wait, left)
			continue
		}
		ready = append(ready, name)
	}
	end := time.Now()
	for _, name := range fresh {
		s := present[name]
		s.since = end
		present[name] = s
	}
	in.seen = present
	if in.doubt == nil { // the first survey
		in.doubt = map[string]bool{}
		for name := range present {
			in.doubt[name] = true
		}
	}
	maps.DeleteFunc(in.doubt, func(name string, _ bool) bool { _, here := present[name]; return !here })
	return ready, wait, nil
}

// doubtful says whether a file of this name may have been committed already: it lay there at the start, where an engine may
// have died between the commit and the move, or a commit of it did not end well. Of any other file it is known that it is
// new, also if it is the same as one before to the last byte and the time: it was dropped again, and is taken again.
func (in *Inbound) doubtful(name string) bool { return in.doubt[name] }

// wanted says whether a name is one to take.
func (in *Inbound) wanted(entry fs.DirEntry) bool {
	name := entry.Name()
	if !entry.Type().IsRegular() || strings.HasPrefix(name, ".") ||
		strings.HasSuffix(name, ".tmp") || strings.HasSuffix(name, ".part") {
		return false
	}
	ok, err := path.Match(in.cfg.Pattern, name)
	return ok && err == nil
}

// take commits one file and puts it away. The sighting it returns is to be kept where it is done and still there.
func (in *Inbound) take(ctx, commit context.Context, root *os.Root, name string, s sighting) (sighting, error) {
	if s.done {
		if err := in.putAway(root, name, s); err != nil {
			return s, nil // said when it first failed
		}
		s.done = false
		return s, nil
	}
	hold := in.cfg.Room.Body(in.cfg.MaxMessage+1, time.Now().Add(in.cfg.Poll), ctx.Done())
	defer hold.Free()
	body, err := in.read(root, name, s, hold)
	switch {
	case errors.Is(err, room.ErrFull), errors.Is(err, room.ErrGone):
		return s, err // it stays, and those behind it
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case errors.Is(err, errNotQuiet):
		return s, nil // forgotten, and so seen anew
	case errors.Is(err, errTooLarge):
		s.bad, err = true, in.refuse(commit, name, s, fmt.Sprintf("file is over the limit of %d bytes", in.cfg.MaxMessage))
	case err != nil:
		if !s.noted {
			in.cfg.Log.Warn("file not read", "file", name, "error", err)
		}
		s.noted = true
		return s, nil // one file that cannot be read does not hold up the others
	default:
		err = in.commit(commit, name, body, &s)
		if errors.Is(err, hl7.ErrBatch) {
			s.bad, err = true, in.refuse(commit, name, s, err.Error())
		}
	}
	if err != nil {
		return s, err
	}
	if err := in.putAway(root, name, s); err != nil {
		in.cfg.Log.Error("file is done but stays where it is", "file", name, "error", err)
		s.done = true
	}
	return s, nil
}

var errTooLarge = errors.New("file is over the limit")

// read returns the whole of a file that is still what the look saw; never nil without an error.
func (in *Inbound) read(root *os.Root, name string, s sighting, hold *room.Body) ([]byte, error) {
	if s.size > in.cfg.MaxMessage {
		return nil, errTooLarge
	}
	f, err := open(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := same(f, root, name, s); err != nil {
		return nil, err
	}
	// The size is the file system's and not the sender's promise, and within the limit.
	if err := hold.Reserve(s.size + 1); err != nil {
		return nil, err
	}
	for hold.Len() <= s.size {
		space, err := hold.Space()
		if err != nil {
			return nil, err
		}
		n, err := f.Read(space)
		hold.Filled(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if hold.Len() != s.size {
		return nil, errNotQuiet
	}
	return hold.Bytes(), same(f, root, name, s)
}

// same says with an error whether the open file is not the regular file that stands under the name, as it was seen.
func same(f *os.File, root *os.Root, name string, s sighting) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if !named.Mode().IsRegular() || !os.SameFile(opened, named) ||
		opened.Size() != s.size || !opened.ModTime().Equal(s.mtime) {
		return errNotQuiet
	}
	return nil
}

// open opens a file for reading, within openWithin. An opening that comes later is closed.
func open(root *os.Root, name string) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotQuiet
	}
	opened := make(chan result)
	given := make(chan struct{})
	defer close(given)
	go func() {
		f, err := root.Open(name)
		select {
		case opened <- result{f, err}:
		case <-given:
			if err == nil {
				_ = f.Close() // nothing was written
			}
		}
	}()
	select {
	case r := <-opened:
		return r.f, r.err
	case <-time.After(openWithin):
		return nil, fmt.Errorf("open: nothing within %v", openWithin)
	}
}

// commit hands the file to the sink, unless that has it already.
func (in *Inbound) commit(ctx context.Context, name string, body []byte, s *sighting) error {
	sum := sha256.Sum256(body)
	src := message.Source{
		Path: filepath.Join(in.cfg.Dir, name), Size: s.size, ModTime: s.mtime.UTC(),
		SHA256: hex.EncodeToString(sum[:]),
	}
	if in.doubtful(name) {
		id, seen, err := in.sink.Seen(ctx, src)
		if err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		if seen {
			in.cfg.Log.Info("file was committed before", "file", name, "message", id)
			s.label = fmt.Sprintf("%010d", id)
			delete(in.doubt, name)
			return nil
		}
	}
	incoming := message.Incoming{
		Inbound: in.cfg.Name, Body: body, Peer: src.Path, Received: time.Now().UTC(), File: &src,
	}
	doubted := in.doubt[name]
	in.doubt[name] = true
	ids, err := connect.Receive(ctx, in.sink, incoming, in.cfg.Split)
	if errors.Is(err, hl7.ErrBatch) {
		in.doubt[name] = doubted
		return err
	}
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	delete(in.doubt, name)
	s.label = fmt.Sprintf("%010d", ids[0])
	return nil
}

// refuse records that a file is turned away for good.
func (in *Inbound) refuse(ctx context.Context, name string, s sighting, reason string) error {
	in.cfg.Log.Warn("refused", "file", name, "reason", reason, "bytes", s.size)
	err := in.sink.Refuse(ctx, message.Refusal{
		Inbound: in.cfg.Name, Peer: filepath.Join(in.cfg.Dir, name), Reason: reason, Size: s.size, At: time.Now().UTC(),
	})
	if err != nil {
		return fmt.Errorf("refuse: %w", err)
	}
	return nil
}

// putAway deletes the file, or moves it to where files like it go. A file that its sender has written anew meanwhile is
// another one, and stays to be read.
func (in *Inbound) putAway(root *os.Root, name string, s sighting) error {
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Size() != s.size || !info.ModTime().Equal(s.mtime):
		return nil
	}
	if !s.bad && in.cfg.After == Delete {
		return remove(root, name)
	}
	to := in.cfg.MoveTo
	if s.bad {
		to = filepath.Join(in.cfg.Dir, errorFolder)
	}
	if err := makeFolder(to); err != nil {
		return err
	}
	if inside, err := filepath.Rel(in.cfg.Dir, to); err == nil && filepath.IsLocal(inside) {
		// Through the root, so that the folder cannot be a link that leads out.
		return rename(root.Lstat, root.Rename, name, filepath.Join(inside, name), s.label)
	}
	return rename(os.Lstat, os.Rename, filepath.Join(in.cfg.Dir, name), filepath.Join(to, name), s.label)
}

// rename moves a file and replaces none: where the target is taken, the new one's name is extended by the message's id, and
// where that is taken too (or there is none) by the time. A file that is gone is moved.
func rename(stat func(string) (os.FileInfo, error), move func(from, to string) error, from, to, label string) error {
	free := func(name string) bool { _, err := stat(name); return err != nil }
	switch {
	case free(to):
	case label != "" && free(to+"."+label):
		to += "." + label
	default:
		to += "." + time.Now().UTC().Format("20060102T150405.000000000")
	}
	if err := move(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
