//go:build unix && !darwin

package tree

// newMark is none: here nothing is found again by its environment. (Linux has rungs that need no such thing.)
func newMark() string { return "" }

// sweepMarked finds nobody.
func sweepMarked(string) []Member { return nil }
