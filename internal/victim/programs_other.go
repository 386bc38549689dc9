//go:build !unix

package victim

func programs() map[string]program { return map[string]program{"sleeper": sleeper} }

// sleeper does nothing.
func sleeper([]string) int {
	say(Ready)
	return untilTold()
}
