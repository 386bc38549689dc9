package main

import (
	"fmt"
	"strings"
	"time"
)

// goal is one of the house's aims beside what was measured.
type goal struct {
	What string `json:"what"`
	Goal string `json:"goal"`
	Got  string `json:"got"`
	Met  bool   `json:"met"`
}

// judge holds what was measured against the goals.
func (r *report) judge() []goal {
	var all []goal
	for _, lanes := range []int{1, 8} {
		floor, off, worker := r.of(floorName, lanes), r.of(offName, lanes), r.of(goName, lanes)
		if worker == nil {
			continue
		}
		at := fmt.Sprintf(" (lanes: %d)", lanes)
		all = append(all,
			atLeast("Go worker, messages/s of the floor's"+at, 0.6, worker.Rate/floor.Rate),
			atLeast("Go worker, messages/s of those with the sandbox off"+at, 0.7, worker.Rate/off.Rate),
			atMost("acknowledgement under load, p99 to the floor's"+at, 2, ratio(worker.Ack.P99, floor.Ack.P99)),
			atMost("acknowledgement one at a time, p99 to the floor's"+at, 2, ratio(worker.Alone.P99, floor.Alone.P99)))
	}
	if s := r.Stored; s != nil {
		all = append(all,
			atMost(fmt.Sprintf("resident memory with %d messages stored to %d", s.Many, s.Few), 1.2, float64(s.ManyMem.RSS)/float64(s.FewMem.RSS)),
			atMost("heap, the same", 1.2, float64(s.ManyMem.Heap)/float64(s.FewMem.Heap)),
			goal{"search, newest 50, p99", "< 10 ms", s.Search.P99.String(), s.Search.P99 < 10*time.Millisecond},
			goal{"search that finds nothing, p99", "< 10 ms", s.Nothing.P99.String(), s.Nothing.P99 < 10*time.Millisecond})
	}
	for _, b := range r.Large {
		if b.System == goName {
			all = append(all, atMost("eight small producers, slower beside one of 10 MB", 6, b.Factor))
		}
	}
	return all
}

func atLeast(what string, goalIs, got float64) goal {
	return goal{what, fmt.Sprintf(">= %.0f %%", goalIs*100), fmt.Sprintf("%.0f %%", got*100), got >= goalIs}
}

func atMost(what string, goalIs, got float64) goal {
	return goal{what, fmt.Sprintf("<= %.1fx", goalIs), fmt.Sprintf("%.2fx", got), got <= goalIs}
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

func (r *report) of(system string, lanes int) *rates {
	for i := range r.Rates {
		if r.Rates[i].System == system && r.Rates[i].Lanes == lanes {
			return &r.Rates[i]
		}
	}
	return nil
}

// tell prints it all for people.
func (r *report) tell() {
	fmt.Println(r.Host)
	r.tellRates()
	if len(r.Large) > 0 {
		table("Eight producers of 1 KiB beside one of 10 MB", "system", "alone, messages/s", "beside", "slower", "large/s", "ack alone p50, p99", "ack beside p50, p99")
		for _, b := range r.Large {
			row(b.System, whole(b.Alone), whole(b.Beside), fmt.Sprintf("%.1fx", b.Factor), fmt.Sprintf("%.1f", b.Large), b.Acks.String(), b.Slow.String())
		}
	}
	if s := r.Stored; s != nil {
		table("An engine with messages stored", "stored", "resident", "heap in use")
		row(fmt.Sprint(s.Few), mib(s.FewMem.RSS), mib(s.FewMem.Heap))
		row(fmt.Sprint(s.Many), mib(s.ManyMem.RSS), mib(s.ManyMem.Heap))
		fmt.Printf("\nNewest 50 of one inbound, today, ERROR, of %d messages (%s; filled at %.0f/s): %d found in p50, p99 %s; none found in %s.\n",
			s.Many, mib(s.DiskSize), s.PerSec, s.Found, s.Search, s.Nothing)
	}
	table("Goals", "what", "goal", "here", "")
	for _, g := range r.Goals {
		row(g.What, g.Goal, g.Got, map[bool]string{true: "met", false: "**not met**"}[g.Met])
	}
}

func (r *report) tellRates() {
	for _, lanes := range []int{1, 8} {
		floor := r.of(floorName, lanes)
		if floor == nil {
			continue
		}
		table(fmt.Sprintf("1 KiB messages, lanes: %d", lanes), "system", "messages/s", "of the floor", "ack p50, p99", "end, one at a time p50, p99",
			"ack, one at a time p50, p99", "end under load p50, p99", "CPU here", "written")
		for _, x := range r.Rates {
			if x.Lanes == lanes {
				row(x.System, whole(x.Rate), fmt.Sprintf("%.0f %%", 100*x.Rate/floor.Rate), x.Ack.String(), x.Single.String(), x.Alone.String(), x.End.String(),
					short(x.CPU), fmt.Sprintf("%.1f KiB", float64(x.Written)/1024))
			}
		}
	}
}

func table(title string, columns ...string) {
	fmt.Printf("\n**%s**\n\n", title)
	row(columns...)
	fmt.Println("|" + strings.Repeat("---|", len(columns)))
}

func row(cells ...string) { fmt.Println("| " + strings.Join(cells, " | ") + " |") }

func (t times) String() string { return short(t.P50) + ", " + short(t.P99) }

// short is a time with three digits.
func short(d time.Duration) string {
	switch ms := float64(d) / 1e6; {
	case ms < 1:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	default:
		return fmt.Sprintf("%.0f ms", ms)
	}
}

func whole(f float64) string { return fmt.Sprintf("%.0f", f) }

func mib(b int64) string { return fmt.Sprintf("%.1f MiB", float64(b)/(1<<20)) }
