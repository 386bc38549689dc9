package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// dispositionHeld is the word for messages that are under way and wait. No message stands at it in the store.
const dispositionHeld message.Disposition = "HELD"

const (
	searchPage  = 100
	searchMost  = 100_000 // messages that are looked at, unless --look says otherwise
	searchBytes = 1 << 30 // of bodies that are read
)

// search looks at message after message, newest first, for what no index finds: a text in a body, or that it is held. It reads the
// store in small steps, each of which is over before the next begins.
type search struct {
	io     stdio
	r      store.Reader
	q      store.Query // Limit is how many to find
	text   string      // in a body; empty: no matter
	held   bool        // only what waits
	most   int         // messages to look at
	asJSON bool
	stands *standings
	bar    *progressbar.ProgressBar

	looked looked
	found  []found
}

// looked is how far a search has come.
type looked struct {
	Messages int        `json:"messages"`
	Bytes    int64      `json:"bytes"`              // of bodies
	All      bool       `json:"all"`                // there is no more to look at
	Before   message.ID `json:"before,omitempty"`   // with --before this, the same command goes on
	Received *time.Time `json:"received,omitempty"` // of the last message that was looked at
}

// found is a message that is listed.
type found struct {
	message.Message
	held []held
	seen string // how somebody has seen to one that failed: see seenTo
	in   string // where the text is
}

func (f found) forMachines() listed {
	l := forMachines(f.Message, f.held)
	l.FoundIn, l.SeenTo = f.in, f.seen
	return l
}

// run searches until enough is found, all is looked at, or a bound is reached. What was found before an error stands.
func (s *search) run(ctx context.Context, tell func(found) error) error {
	if !s.quiet() {
		s.bar = progressbar.NewOptions(s.most, progressbar.OptionSetWriter(s.io.err), progressbar.OptionSetDescription("searching"),
			progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
		defer s.bar.Finish()
	}
	for {
		page, err := s.page(ctx)
		if len(page) == 0 || err != nil {
			s.looked.All = err == nil
			return err
		}
		for _, m := range page {
			f, err := s.one(ctx, m)
			if err != nil {
				return err
			}
			if f != nil {
				s.found = append(s.found, *f)
				if err := tell(*f); err != nil {
					return err
				}
			}
			s.q.Before, s.looked.Before, s.looked.Received = m.ID, m.ID, someTime(m.Received)
			s.looked.Messages++
			if s.bar != nil {
				s.bar.Add(1)
			}
			if len(s.found) == s.q.Limit || s.looked.Messages == s.most || s.looked.Bytes >= searchBytes {
				return nil
			}
		}
	}
}

// quiet says whether to show no bar: nobody sees it, or it would stand among what is found.
func (s *search) quiet() bool { return !terminal(s.io.err) || s.asJSON && terminal(s.io.out) }

// needed says whether there is something to search for; without, the store's own list is the answer.
func (s *search) needed() bool { return s.held || s.text != "" }

// sound finds what is wrong with the flags.
func (s *search) sound(cmd *cobra.Command) error {
	switch {
	case cmd.Flags().Changed("contains") && s.text == "":
		return usage("--contains needs a text")
	case cmd.Flags().Changed("look") && !s.needed():
		return usage("--look goes with --contains, or with --disposition HELD")
	case s.most < 1:
		return usage("--look is at least 1")
	}
	return nil
}

// all finds messages, or lists those of the query if there is nothing to search for.
func (s *search) all(ctx context.Context) (list []message.Message, err error) {
	if !s.needed() {
		return s.r.Messages(ctx, s.q)
	}
	err = s.run(ctx, func(f found) error {
		list = append(list, f.Message)
		return nil
	})
	if err == nil {
		fmt.Fprintln(s.io.err, s.looked)
	}
	return list, causeOf(ctx, err)
}

// list lists what it finds, and says how far it looked, also where it was ended before its time.
func (s *search) list(ctx context.Context) error {
	e := lines(s.io.out)
	err := s.run(ctx, func(f found) error {
		if !s.asJSON {
			return nil // a table is as wide as all that is in it
		}
		return e.Encode(f.forMachines())
	})
	err = causeOf(ctx, err)
	if s.asJSON {
		return errors.Join(err, e.Encode(map[string]looked{"looked": s.looked}))
	}
	err = errors.Join(err, printFound(s.io, s.found, s.text != ""))
	if s.looked.Messages > 0 {
		fmt.Fprintln(s.io.err, s.looked)
	}
	return err
}

// page lists the next messages to look at.
func (s *search) page(ctx context.Context) ([]message.Message, error) {
	q := s.q
	q.Limit = searchPage
	if !s.held {
		return s.r.Messages(ctx, q)
	}
	var all []message.Message
	for _, d := range []message.Disposition{message.Received, message.Routed} {
		q.Disposition = d
		list, err := s.r.Messages(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b message.Message) int { return int(b.ID - a.ID) })
	return all[:min(len(all), searchPage)], nil
}

// one looks at a message; nil if it is not what is looked for, or has been purged meanwhile.
func (s *search) one(ctx context.Context, m message.Message) (*found, error) {
	f, err := s.stands.of(ctx, m)
	if err == nil && (!s.held || len(f.held) > 0) && s.text != "" {
		var hit store.Hit
		hit, err = s.r.Contains(ctx, m.ID, []byte(s.text))
		s.looked.Bytes += hit.Bytes
		switch {
		case !hit.Found:
		case hit.Delivery > 0:
			f.in = fmt.Sprintf("delivery %d", hit.Delivery)
		default:
			f.in = "body"
		}
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case s.held && len(f.held) == 0, s.text != "" && f.in == "":
		return nil, nil
	}
	return &f, nil
}

// String says how far the search looked, and how to go on.
func (l looked) String() string {
	s := "looked at " + several(l.Messages, "message")
	if l.Bytes > 0 {
		s += fmt.Sprintf(" and %d bytes of their bodies", l.Bytes)
	}
	if l.All {
		return s + ", all that there are"
	}
	return s + fmt.Sprintf(", back to message %d of %s; to go on, add --before %d", l.Before, clock(*l.Received), l.Before)
}
