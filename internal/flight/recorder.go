package flight

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/sandbox"
)

// queued is how many records may wait for the disk; more are left out, and counted.
const queued = 64

// Recorder writes records into one folder. Its methods may be called from any goroutine.
type Recorder struct {
	dir    string
	failed func(error)
	queue  chan Record
	done   chan struct{}

	mu     sync.Mutex
	last   int               // the number given last
	boots  map[string]Record // by worker, if its last cut was of one that could not boot
	lost   int
	closed bool
}

// Open makes the folder if it is not there, and goes on with its numbers. failed is told of each record that could not be
// written; it must not block. Close the recorder.
func Open(dir string, failed func(error)) (*Recorder, error) {
	if err := confine.FolderAt(dir); err != nil {
		return nil, fmt.Errorf("flight records: %w", err)
	}
	have, err := List(dir)
	if err != nil {
		return nil, fmt.Errorf("flight records: %w", err)
	}
	r := &Recorder{dir: dir, failed: failed, queue: make(chan Record, queued), done: make(chan struct{}), boots: map[string]Record{}}
	if left, err := filepath.Glob(filepath.Join(dir, ".new-*")); err == nil { // of an engine that was killed
		for _, file := range left {
			os.Remove(file)
		}
	}
	if len(have) > 0 {
		r.last = have[len(have)-1]
	}
	go func() {
		defer close(r.done)
		for record := range r.queue {
			r.write(record)
		}
	}()
	return r, nil
}

// Note takes what the sandbox tells of a cut, and returns the number under which it can be read a moment later; 0 for an end
// that was in order, which is not recorded. It does not wait for the disk.
func (r *Recorder) Note(c sandbox.Cut) int {
	if orderly(c) {
		return 0
	}
	record := of(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	before, again := r.boots[record.Worker]
	if again = again && record.Kind == "boot" && before.Why == record.Why && before.ID > r.last-Keep; again {
		record.ID, record.Times = before.ID, before.Times+1
	} else if r.last == lastID {
		r.failed(fmt.Errorf("there is no number left for a flight record: remove the folder %s", r.dir))
		return 0
	} else {
		r.last++
		record.ID = r.last
	}
	delete(r.boots, record.Worker)
	if record.Kind == "boot" {
		r.boots[record.Worker] = Record{ID: record.ID, Times: record.Times, Why: record.Why}
	}
	select {
	case r.queue <- record:
	default:
		r.lost++
		r.failed(fmt.Errorf("flight record %d: the disk is too slow; %d have been left out", record.ID, r.lost))
	}
	return record.ID
}

// NoteUnstarted takes what the sandbox tells of a worker that could not be started at all, like Note.
func (r *Recorder) NoteUnstarted(u sandbox.Unstarted) int {
	return r.Note(sandbox.Cut{Session: u.Session, Why: u.Err, At: u.At, Steps: u.Steps})
}

// Close writes what is waiting, and ends the recorder.
func (r *Recorder) Close() {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.queue)
	}
	r.mu.Unlock()
	<-r.done
}

func (r *Recorder) write(record Record) {
	if err := r.put(record); err != nil {
		r.failed(fmt.Errorf("flight record %d: %w", record.ID, err))
	}
}

// put replaces the file of a record whole, and removes the oldest ones.
func (r *Recorder) put(record Record) error {
	b, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	to := filepath.Join(r.dir, name(record.ID))
	f, err := os.CreateTemp(r.dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	have, err := List(r.dir)
	for _, id := range have[:max(len(have)-Keep, 0)] {
		err = errors.Join(err, os.Remove(filepath.Join(r.dir, name(id))))
	}
	return err
}
