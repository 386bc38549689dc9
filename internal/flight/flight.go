// Package flight keeps a record of each worker that was cut: what it was asked, what came, its tree as it stood, its last
// output, the rule that was broken, and when each of it was. `coppice explain` tells them.
//
// A record is one file of JSON in a folder of the engine's, named by its number. It may hold what messages hold, so that
// nobody but the engine's user can read it; only the last ones are kept.
package flight

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/tree"
)

// Keep is how many records a folder keeps; the oldest go.
const Keep = 500

// recordCap is the most bytes of a record that is read: a worker of the same user may have put anything in its place.
const recordCap = 4 << 20

// textCap is the most bytes of an error's text; a worker that cannot boot may send megabytes.
const textCap = 64 << 10

// lastID is the largest number that a file's name holds.
const lastID = 99_999_999

// Record is the story of one cut. Texts are as they came: escape them for a terminal.
type Record struct {
	ID     int    `json:"id"`
	Worker string `json:"worker"` // "handler admit"
	// Kind is what it was cut for: "deadline", "violation", "crash", "limit", "cancel", "boot" or "exit", which is a worker
	// that ended by itself between dispatches. Name is the violation's or the limit's.
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"`
	Why  string `json:"why,omitempty"`
	// Times is how often the same has happened in a row: workers that cannot boot share one record.
	Times int `json:"times"`

	Message int64     `json:"message,omitempty"` // whose dispatch it was; 0: no message paid
	At      time.Time `json:"at"`                // when the cut began
	// Steps are what happened before, the first two and the last sixteen.
	Steps []sandbox.Step `json:"steps"`
	// Said and Heard are the last headers to and from the worker; the latter may be one that was refused.
	Said  string `json:"said,omitempty"`
	Heard string `json:"heard,omitempty"`

	Tree   tree.Report `json:"tree,omitzero"`    // zero of one that could not be started at all
	Status string      `json:"status"`           // how the command ended
	OOM    tree.OOM    `json:"oom,omitempty"`    // whether the kernel killed it for want of memory
	Left   string      `json:"left,omitempty"`   // why the tree is not proved empty
	Output []string    `json:"output,omitempty"` // the last lines that it printed
}

// of makes a record of what the sandbox tells; its number is missing.
func of(c sandbox.Cut) Record {
	r := Record{Worker: c.Session, Message: c.Message, At: c.At.UTC(), Steps: c.Steps, Said: c.Said, Heard: c.Heard, Tree: c.Report,
		Status: c.Status.String(), OOM: c.Status.OOM, Output: c.Output, Times: 1}
	if c.Err != nil {
		r.Left = c.Err.Error()
	}
	r.Kind, r.Name = kind(c)
	if c.Why != nil {
		if r.Why = c.Why.Error(); len(r.Why) > textCap {
			r.Why = strings.ToValidUTF8(r.Why[:textCap], "") + "..."
		}
	}
	return r
}

func kind(c sandbox.Cut) (kind, name string) {
	var deadline *sandbox.DeadlineError
	var violation *sandbox.ViolationError
	var crash *sandbox.CrashError
	var limit *sandbox.LimitError
	booted := slices.ContainsFunc(c.Steps, func(s sandbox.Step) bool { return s.What == sandbox.StepReady })
	switch {
	case c.Why != nil && c.Message == 0 && !booted:
		return "boot", ""
	case errors.As(c.Why, &deadline):
		return "deadline", ""
	case errors.As(c.Why, &violation):
		return "violation", violation.Violation.Name
	case errors.As(c.Why, &crash):
		return "crash", ""
	case errors.As(c.Why, &limit):
		return "limit", limit.Limit
	case c.Why != nil:
		return "cancel", ""
	}
	return "exit", ""
}

// Unstarted says that there was no process: the command could not be executed, or the host lacks what it takes.
func (r Record) Unstarted() bool { return r.Tree.Level == 0 }

// orderly says whether nothing is to be explained: the pool was closed, or the worker's time was over.
func orderly(c sandbox.Cut) bool {
	return c.Expected && c.Err == nil
}

// Read reads one record. The error is fs.ErrNotExist if there is none of that number.
func Read(dir string, id int) (Record, error) {
	var r Record
	// A worker of the same user may have put a FIFO there, whose other end nobody opens.
	f, err := os.OpenFile(filepath.Join(dir, name(id)), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return r, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return r, err
	case !info.Mode().IsRegular() || info.Size() > recordCap:
		return r, fmt.Errorf("%s is no record", f.Name())
	}
	d := json.NewDecoder(f)
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("%s is damaged: %w", f.Name(), err)
	}
	r.ID = id
	return r, nil
}

// List returns the numbers of the records in a folder, oldest first; none if there is no such folder.
func List(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []int
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), ".json")
		if id, err := strconv.Atoi(digits); ok && err == nil && id > 0 && id <= lastID && name(id) == e.Name() {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out, err
}

func name(id int) string { return fmt.Sprintf("%08d.json", id) }
