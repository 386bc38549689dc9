package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store/sqlite"
)

func lanesCommand(io stdio) *cobra.Command {
	var dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "lanes",
		Short: "Show what waits, since when, how fast it moves, and what is held and why",
		Long: `Lanes lists the queues of a folder: the messages of each inbound that await routing, those of each handler, and of each outbound
the deliveries from each inbound, among which order holds unless NOW says that none is kept. It lists those in which something waits or is held, and, while an engine
runs, those through which something went in the last minute (LAST MIN).

OLDEST is how long ago the oldest of the messages was received. NOW says what a lane is at: held until coppice release;
waiting for its next try; or behind a place that is reserved for a handler which has not ended.`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return verb(cmd, func(cmd *cobra.Command, _ []string) error {
		cfg, err := locate(io, dir)
		if err != nil {
			return err
		}
		s, err := readStatus(cmd.Context(), cfg)
		if err != nil {
			return tellStore(err)
		}
		lanes := lanesOf(s, time.Now())
		if asJSON {
			return printJSON(io.out, map[string]any{"running": s.Running, "lanes": lanes})
		}
		return printLanes(io, s.Running, lanes)
	})
}

// readStatus asks the engine; where none answers it reads the store.
func readStatus(ctx context.Context, cfg *config.Config) (control.Status, error) {
	c, err := control.Dial(ctx, engine.ControlSocket(cfg))
	if err == nil {
		defer c.Close()
		return c.Status(ctx)
	}
	if !errors.Is(err, control.ErrNoEngine) {
		return control.Status{}, fmt.Errorf("reach the engine: %w", err)
	}
	r, err := sqlite.OpenReader(ctx, cfg.Store.Path)
	if err != nil {
		return control.Status{}, err
	}
	defer r.Close()
	return engine.StatusOf(ctx, r)
}

// lane is a lane for machines.
type lane struct {
	Kind    string     `json:"kind"`
	Name    string     `json:"name"`
	Inbound string     `json:"inbound,omitempty"`   // of an outbound's lane
	None    bool       `json:"unordered,omitempty"` // it keeps no order
	Waiting int64      `json:"waiting"`
	Oldest  *time.Time `json:"oldest,omitempty"`
	Age     float64    `json:"oldest_seconds,omitempty"`
	Rate    int64      `json:"last_minute"`
	Held    string     `json:"held,omitempty"` // why
	Since   *time.Time `json:"held_since,omitempty"`
	Now     string     `json:"now,omitempty"` // what it is at
	NextTry *time.Time `json:"next_try,omitempty"`
}

// lanesOf says of each lane what it is at.
func lanesOf(s control.Status, now time.Time) []lane {
	holds := map[message.Target]message.Hold{}
	for _, h := range s.Holds {
		holds[h.Target] = h
	}
	out := []lane{}
	for _, l := range s.Lanes {
		one := lane{Kind: l.Kind, Name: l.Name, Inbound: l.Inbound, None: l.Unordered, Waiting: l.Waiting, Rate: l.Rate}
		if !l.Oldest.IsZero() {
			one.Oldest, one.Age = &l.Oldest, now.Sub(l.Oldest).Seconds()
		}
		h, held := holds[l.Target]
		if !held && l.Inbound != "" { // the whole outbound may be
			h, held = holds[message.Target{Kind: l.Kind, Name: l.Name}]
		}
		switch {
		case held:
			one.Held, one.Since = h.Reason, &h.Since
			one.Now = fmt.Sprintf("held since %s (coppice release %s): %s", clock(h.Since), releaseOf(h.Target), h.Reason)
		case l.Head == nil:
		case l.Head.State == message.Reserved:
			one.Now = fmt.Sprintf("waits for handler %s to end message %d", l.Head.Handler, l.Head.Message)
			if h, ok := holds[message.Target{Kind: message.KindHandler, Name: l.Head.Handler}]; ok {
				one.Now += ", which is held since " + clock(h.Since)
			}
		case !l.Head.NextTry.IsZero():
			one.NextTry = &l.Head.NextTry
			one.Now = fmt.Sprintf("delivery %s is tried again %s: %s", l.Head.Name(), clock(l.Head.NextTry), l.Head.Reason)
		}
		if one.None {
			one.Now = strings.TrimSuffix("no order; "+one.Now, "; ")
		}
		out = append(out, one)
	}
	return out
}

func printLanes(io stdio, running bool, lanes []lane) error {
	if !running {
		fmt.Fprintln(io.err, "no engine runs, or it takes no orders; this is what the store has")
	}
	if len(lanes) == 0 {
		fmt.Fprintln(io.err, "nothing waits, nothing is held")
		return nil
	}
	rows := [][]string{{"LANE", "WAITING", "OLDEST", "LAST MIN", "NOW"}}
	for _, l := range lanes {
		name, oldest := l.Kind+" "+l.Name, ""
		if l.Inbound != "" {
			name += " from " + l.Inbound
		}
		if l.Oldest != nil {
			oldest = time.Duration(l.Age * float64(time.Second)).Round(time.Second).String()
		}
		rows = append(rows, []string{name, strconv.FormatInt(l.Waiting, 10), oldest, strconv.FormatInt(l.Rate, 10), clip(l.Now, 160)})
	}
	return table(io.out, rows)
}
