//go:build unix && !linux

package tree

// ladder lists the rungs of the other Unixes: the process group alone.
func ladder() []rung { return []rung{processGroup()} }
