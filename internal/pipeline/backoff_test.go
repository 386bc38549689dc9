package pipeline

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestDelay: doubled, capped, and at most a tenth less. Guards seen red: without leastWait a zero Retry spins; with a cap
// that is looked at after doubling alone, the longest durations overflow.
func TestDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		longest := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "longest"))
		first := time.Duration(rapid.Int64Range(0, int64(longest)).Draw(t, "first"))
		n := rapid.IntRange(0, 100).Draw(t, "n")
		want := float64(longest)
		if doubled := float64(first) * math.Pow(2, float64(n)); doubled < want {
			want = doubled
		}
		want = max(want, float64(leastWait))
		if got := float64(delay(first, longest, n)); got > want*1.000001 || got < want*0.899999 {
			t.Fatalf("delay(%v, %v, %d) = %v, want %v, or up to a tenth less", first, longest, n, time.Duration(got), time.Duration(want))
		}
	})
}

// TestDelaysSpread: what failed together does not come back together. Seen red without the random part.
func TestDelaysSpread(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[delay(time.Second, time.Minute, 2)] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 delays have %d values", len(seen))
	}
}
