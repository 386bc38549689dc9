package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/flight"
)

func explainCommand(io stdio) *cobra.Command {
	var dir string
	var asJSON, list bool
	var message int64
	cmd := &cobra.Command{
		Use:   "explain [CUT-ID]",
		Short: "Tell why a worker was cut: what it was asked, what came, and its tree as it stood",
		Long: `Explain tells the story of one worker that was cut, or has ended by itself: the last one, or the one with the number that
serve's log calls cut. It works while the engine runs, and after.

The engine keeps the last ` + strconv.Itoa(flight.Keep) + ` stories. They may hold what messages hold: the last lines that the worker printed, and headers
with tags. Workers that cannot boot share one story, as long as the reason is the same.`,
		Args: takes(0, 1, "one cut's number: `coppice explain --list` lists them"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON; with --list, one cut a line")
	cmd.Flags().BoolVar(&list, "list", false, "list the cuts, the last one first")
	cmd.Flags().Int64Var(&message, "message", 0, "the last cut of a worker that had message `ID`; with --list, those alone")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		id := 0
		if len(args) == 1 {
			var err error
			if id, err = strconv.Atoi(args[0]); err != nil || id < 1 {
				return usage("%q is no number of a cut: `coppice explain --list` lists them", args[0])
			}
		}
		switch asked := cmd.Flags().Changed("message"); {
		case asked && message < 1:
			return usage("--message needs a message's id, from 1")
		case asked && id != 0, list && id != 0:
			return usage("a cut's number goes without --list and --message")
		}
		cfg, err := locate(io, dir)
		if err != nil {
			return err
		}
		e := explaining{io: io, dir: engine.FlightFolder(cfg), message: message, asJSON: asJSON}
		switch {
		case list:
			return e.list()
		case id != 0:
			return e.one(id)
		}
		return e.last()
	})
}

type explaining struct {
	io      stdio
	dir     string
	message int64 // if not 0, the one whose cuts are asked for
	asJSON  bool
}

// each yields the records that are asked for, the last one first. One that is removed or damaged meanwhile is left out.
func (e *explaining) each(yield func(flight.Record) bool) error {
	ids, err := flight.List(e.dir)
	for i := len(ids) - 1; i >= 0 && err == nil; i-- {
		r, bad := flight.Read(e.dir, ids[i])
		switch {
		case errors.Is(bad, fs.ErrNotExist):
		case bad != nil:
			fmt.Fprintf(e.io.err, "coppice explain: %s\n", printableError(bad))
		case e.message != 0 && r.Message != e.message:
		case !yield(r):
			return nil
		}
	}
	return err
}

func (e *explaining) list() error {
	rows := [][]string{{"CUT", "WHEN", "WORKER", "MESSAGE", "WHY"}}
	each := lines(e.io.out)
	var failed error
	err := e.each(func(r flight.Record) bool {
		if e.asJSON {
			failed = each.Encode(recordJSON(r))
			return failed == nil
		}
		message := ""
		if r.Message != 0 {
			message = strconv.FormatInt(r.Message, 10)
		}
		rows = append(rows, []string{strconv.Itoa(r.ID), r.At.Local().Format("2006-01-02 15:04:05 -07:00"), r.Worker, message, short(r)})
		return true
	})
	if err = errors.Join(err, failed); err != nil || e.asJSON {
		return err
	}
	if len(rows) == 1 {
		fmt.Fprintln(e.io.err, e.none())
		return nil
	}
	return table(e.io.out, rows)
}

// short is why a worker was cut, in one cell.
func short(r flight.Record) string {
	why := r.Why
	if r.Kind == "exit" {
		why = "ended by itself: " + r.Status
	}
	if first, _, more := strings.Cut(why, "\n"); more {
		why = first + " ..."
	}
	if r.Times > 1 {
		why = fmt.Sprintf("%s (%d times)", why, r.Times)
	}
	return why
}

func (e *explaining) last() error {
	found := false
	var failed error
	err := e.each(func(r flight.Record) bool {
		found = true
		failed = e.tell(r)
		return false
	})
	switch {
	case err != nil || failed != nil:
		return errors.Join(err, failed)
	case !found:
		return errors.New(e.none())
	}
	return nil
}

// none says that there is nothing to tell.
func (e *explaining) none() string {
	if e.message != 0 {
		return fmt.Sprintf("no worker that had message %d was cut, or its story is no longer kept; `coppice show %d` says what holds it, if anything does", e.message, e.message)
	}
	return "no worker has been cut"
}

func (e *explaining) one(id int) error {
	r, err := flight.Read(e.dir, id)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no cut %d, or it is no longer kept: `coppice explain --list` lists them", id)
	}
	if err != nil {
		return err
	}
	return e.tell(r)
}

// forPrograms is a record whose headers are objects, where they are legal, whole JSON; else they are the strings that a record has.
type forPrograms struct {
	flight.Record
	Said  any    `json:"said,omitempty"`
	Heard any    `json:"heard,omitempty"`
	Rule  string `json:"rule"` // as the story says it
	Hint  string `json:"hint,omitempty"`
}

func recordJSON(r flight.Record) forPrograms {
	out := forPrograms{Record: r, Rule: rule(r), Hint: hint(r)}
	for to, header := range map[*any]string{&out.Said: r.Said, &out.Heard: r.Heard} {
		var object map[string]json.RawMessage
		switch {
		case header == "":
		case json.Unmarshal([]byte(header), &object) == nil && object != nil:
			*to = json.RawMessage(header)
		default:
			*to = header
		}
	}
	return out
}

func (e *explaining) tell(r flight.Record) error {
	if e.asJSON {
		return printJSON(e.io.out, recordJSON(r))
	}
	var b strings.Builder
	s := story{Record: r, b: &b}
	s.tell()
	_, err := e.io.out.Write([]byte(b.String()))
	return err
}
