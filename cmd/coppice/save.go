package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"coppice.dev/coppice/internal/cases"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// saving writes stored messages as cases.
type saving struct {
	dir   string
	force bool
}

// save writes messages, which are listed newest first, beginning with the oldest. Without force it writes all or none: a case that is there already
// stays, and is told of.
func (s saving) save(ctx context.Context, io stdio, r store.Reader, list []message.Message, asJSON bool) error {
	if len(list) == 0 {
		return errors.New("no messages: nothing was saved")
	}
	slices.Reverse(list)
	if err := s.free(list); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	unended := 0
	for _, m := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		ended, err := s.one(ctx, r, m)
		if err != nil {
			return err
		}
		if !ended {
			unended++
		}
		if err := s.tell(io, m, ended, asJSON); err != nil {
			return err
		}
	}
	if !asJSON {
		fmt.Fprintf(io.err, "%d saved, %d of them without expectation: their handlers have not ended\n", len(list), unended)
	}
	return nil
}

// free says which case of them is there already.
func (s saving) free(list []message.Message) error {
	for _, m := range list {
		for _, path := range []string{s.path(m), cases.WantDir(s.path(m))} {
			if _, err := os.Lstat(path); err == nil && !s.force {
				return fmt.Errorf("%s is there already: nothing was saved\n  hint: choose another folder, or add --force", path)
			}
		}
	}
	return nil
}

// path sorts in receive order and tells the type.
func (s saving) path(m message.Message) string {
	name := fmt.Sprintf("%010d", m.ID)
	typ := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, m.Type)
	if typ != "" {
		name += "-" + typ[:min(len(typ), 20)]
	}
	return filepath.Join(s.dir, name+cases.Ending)
}

// one writes a message, and what was sent of it if its handlers have ended. An expectation of before that is no longer one goes.
func (s saving) one(ctx context.Context, r store.Reader, m message.Message) (ended bool, err error) {
	t, err := r.Timeline(ctx, m.ID)
	if err != nil {
		return false, err
	}
	path := s.path(m)
	if s.force {
		_, err = cases.WriteFile(path, t.Message.Body)
	} else {
		err = writeNew(path, t.Message.Body)
	}
	if err != nil {
		return false, err
	}
	result, ended := cases.FromStore(t)
	if !ended {
		return false, cases.Remove(cases.WantDir(path))
	}
	_, err = cases.Write(cases.WantDir(path), result)
	return true, err
}

func (s saving) tell(io stdio, m message.Message, expected, asJSON bool) error {
	if asJSON {
		return lines(io.out).Encode(struct {
			ID       message.ID `json:"id"`
			Case     string     `json:"case"`
			Expected bool       `json:"expected"`
		}{m.ID, s.path(m), expected})
	}
	_, err := fmt.Fprintln(io.out, "saved", printable(s.path(m)))
	return err
}
