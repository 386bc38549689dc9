//go:build !linux

package tree

// oomCount is nothing here: no system but Linux counts whom it kills for want of memory, where anybody could read it.
type oomCount struct{}

func hostOOM() (none oomCount) { return none }

func (oomCount) rose() bool { return false }
