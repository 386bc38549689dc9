//go:build !unix

package victim

var programs = map[string]program{"sleeper": sleeper}

// sleeper does nothing.
func sleeper([]string) int {
	say(Ready)
	return untilTold()
}
