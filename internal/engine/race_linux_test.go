//go:build race

package engine

// Under the race detector a soak is short, and resident memory is the detector's: its shadow grows with what was ever touched.
const (
	soakMessages = 500
	soakMemory   = false
)
