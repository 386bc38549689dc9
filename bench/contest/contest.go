// Package contest measures things beside each other, turn by turn, so that a noisy machine hits them alike.
package contest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

// Entrant is one thing that is measured.
type Entrant struct {
	Name string
	Turn int // runs in a row; 0 says 1
	Run  func() (time.Duration, error)
}

// Medians runs the rounds and returns each entrant's median. In every round each has its turn, in an order that chance
// decides. A turn begins with a collection, so that nobody pays for the garbage of the one before.
func Medians(rounds int, all []Entrant) (map[string]time.Duration, error) {
	took := map[string][]time.Duration{}
	for range rounds {
		for _, i := range rand.Perm(len(all)) {
			e := all[i]
			runtime.GC()
			for range max(e.Turn, 1) {
				d, err := e.Run()
				if err != nil {
					return nil, fmt.Errorf("%s: %w", e.Name, err)
				}
				took[e.Name] = append(took[e.Name], d)
			}
		}
	}
	out := map[string]time.Duration{}
	for name, list := range took {
		out[name] = Median(list)
	}
	return out, nil
}

// Median is the median of what a run has measured besides; there must be something.
func Median(took []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(took))[len(took)/2]
}
