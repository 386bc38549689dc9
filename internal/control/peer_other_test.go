//go:build !linux

package control

// child is of Linux's tests.
func child(string) int { return 1 }
