package cases

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"coppice.dev/coppice/internal/message"
)

// The names of what is expected: in the folder beside a case, the outcome and a file for each body.
const (
	Ending      = ".hl7"  // of cases
	wantEnding  = ".want" // of the folder beside one
	outcomeFile = "outcome.toml"
)

// The caps of files that are read.
const (
	MaxBody    = 64 << 20
	maxOutcome = 1 << 20
)

const preface = "# What is expected of a message: coppice test compares, coppice test --update writes. The bodies lie beside this file.\n"

// outcome is a Result as it is written.
type outcome struct {
	Inbound     string              `toml:"inbound"`
	Message     message.ID          `toml:"message"`
	Received    time.Time           `toml:"received"`
	Disposition message.Disposition `toml:"disposition"`
	Router      *part               `toml:"router,omitempty"`
	Tags        map[string]string   `toml:"tags,omitempty"`
	Handlers    []part              `toml:"handler,omitempty"`
}

type part struct {
	Name   string           `toml:"name,omitempty"`
	State  message.RunState `toml:"state"`
	Fault  string           `toml:"fault,omitempty"`
	Reason string           `toml:"reason,omitempty"`
	Sends  []string         `toml:"sends,omitempty"`
}

// encode is the outcome's text, and the bodies by the names of their files.
func (r Result) encode() ([]byte, map[string][]byte, error) {
	bodies := map[string][]byte{}
	o := outcome{Inbound: r.Inbound, Message: r.Message, Received: r.Received.UTC(), Disposition: r.Disposition, Tags: r.Tags}
	if r.Router != nil {
		p := r.Router.encode(nil)
		o.Router = &p
	}
	for _, h := range r.Handlers {
		o.Handlers = append(o.Handlers, h.encode(bodies))
	}
	text, err := toml.Marshal(o)
	return append([]byte(preface), text...), bodies, err
}

func (p Part) encode(bodies map[string][]byte) part {
	out := part{Name: p.Handler, State: p.State, Fault: p.Fault, Reason: p.Reason}
	if p.Measured() {
		out.Reason = ""
	}
	for _, s := range p.Sends {
		out.Sends = append(out.Sends, s.To)
		bodies[bodyFile(p.Handler, out.Sends)] = s.Body
	}
	return out
}

// bodyFile names the file of the last of a handler's sends. Neither a handler's name nor an outbound's has a dot.
func bodyFile(handler string, sends []string) string {
	to := sends[len(sends)-1]
	n := 0
	for _, s := range sends {
		if s == to {
			n++
		}
	}
	if n > 1 {
		to += "." + strconv.Itoa(n)
	}
	return handler + "." + to + Ending
}

// Write writes what is expected into a folder, which it makes: each file whole or not at all, the outcome last, and only those
// that are not so already. Bodies that an earlier outcome named, and this one does not, are removed.
func Write(dir string, r Result) (changed bool, err error) {
	text, bodies, err := r.encode()
	if err != nil {
		return false, err
	}
	old, _ := read(dir) // what is spoilt is written anew
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	for name, body := range bodies {
		wrote, err := WriteFile(filepath.Join(dir, name), body)
		if changed = changed || wrote; err != nil {
			return changed, err
		}
	}
	wrote, err := WriteFile(filepath.Join(dir, outcomeFile), text)
	if changed = changed || wrote; err != nil {
		return changed, err
	}
	for _, name := range old.bodyFiles() {
		if _, kept := bodies[name]; kept {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return changed, err
		}
	}
	return changed, nil
}

func (o outcome) bodyFiles() (out []string) {
	for _, h := range o.Handlers {
		for i := range h.Sends {
			out = append(out, bodyFile(h.Name, h.Sends[:i+1]))
		}
	}
	return out
}

// WriteFile writes a file whole or not at all, for its owner alone unless there was one with other rights, and says whether
// it had to.
func WriteFile(path string, b []byte) (bool, error) {
	mode := fs.FileMode(0o600)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
		if info.Size() == int64(len(b)) {
			if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
				return false, nil
			}
		}
	}
	temporary := filepath.Join(filepath.Dir(path), ".new-"+rand.Text())
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return false, err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return false, errors.Join(err, os.Remove(temporary))
	}
	return true, nil
}

// Read reads what a folder says is expected; the error is fs.ErrNotExist if there is nothing. If a body lacks, the result has what
// the handlers are told all the same.
func Read(dir string) (Result, error) {
	o, err := read(dir)
	if err != nil {
		return Result{}, err
	}
	r := Result{Inbound: o.Inbound, Message: o.Message, Received: o.Received, Disposition: o.Disposition, Tags: o.Tags}
	if o.Router != nil {
		r.Router = &Part{State: o.Router.State, Fault: o.Router.Fault, Reason: o.Router.Reason}
	}
	for _, h := range o.Handlers {
		p := Part{Handler: h.Name, State: h.State, Fault: h.Fault, Reason: h.Reason}
		for i, to := range h.Sends {
			body, err := capped(filepath.Join(dir, bodyFile(h.Name, h.Sends[:i+1])), MaxBody)
			if err != nil {
				// With %v: a body that lacks is not an expectation that lacks.
				return r, fmt.Errorf("%s: handler %s, to %s: %v", filepath.Join(dir, outcomeFile), h.Name, to, err)
			}
			p.Sends = append(p.Sends, message.Send{To: to, Body: body})
		}
		slices.SortStableFunc(p.Sends, func(a, b message.Send) int { return strings.Compare(a.To, b.To) })
		r.Handlers = append(r.Handlers, p)
	}
	return r, nil
}

// name is what a handler and an outbound may be called. No name leads out of the folder.
var name = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

func read(dir string) (o outcome, err error) {
	path := filepath.Join(dir, outcomeFile)
	text, err := capped(path, maxOutcome)
	if err != nil {
		return o, err
	}
	d := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return outcome{}, fmt.Errorf("%s: %w", path, decodeError(err))
	}
	for _, h := range o.Handlers {
		for _, n := range append(slices.Clone(h.Sends), h.Name) {
			if !name.MatchString(n) {
				return outcome{}, fmt.Errorf("%s: %q is no name of a handler or an outbound", path, n)
			}
		}
	}
	if o.Message < 1 {
		return outcome{}, fmt.Errorf("%s: message is the id that the handlers are told, from 1", path)
	}
	return o, nil
}

// decodeError adds the place, which the decoder's errors do not say.
func decodeError(err error) error {
	if bad, ok := errors.AsType[*toml.StrictMissingError](err); ok && len(bad.Errors) > 0 {
		line, column := bad.Errors[0].Position()
		return fmt.Errorf("line %d, column %d: unknown key %q", line, column, strings.Join(bad.Errors[0].Key(), "."))
	}
	if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column := bad.Position()
		return fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return err
}

// capped reads a regular file up to a size.
func capped(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // before it is opened: a named pipe would block
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s is over %d bytes", path, most)
	}
	return b, err
}

// Remove removes what a folder says is expected, and the folder if nothing else is in it. Nothing there is no error.
func Remove(dir string) error {
	o, err := read(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, name := range append(o.bodyFiles(), outcomeFile) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	_ = os.Remove(dir) // there may be notes of people's in it
	return nil
}
