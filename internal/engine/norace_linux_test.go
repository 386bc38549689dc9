//go:build !race

package engine

const (
	soakMessages = 2000
	soakMemory   = true
)
