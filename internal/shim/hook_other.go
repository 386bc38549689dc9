//go:build !linux

package shim

// Marked says whether executing this program again makes a shim of it: only on Linux is there one.
func Marked() bool { return false }

// Hook does nothing: only Linux has rungs that need a shim.
func Hook() {}
