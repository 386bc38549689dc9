//go:build unix && !linux

package victim

import "strconv"

// systemPrograms are none: those of Linux alone need its system calls.
func systemPrograms() map[string]program { return map[string]program{} }

func rename(string) {}

// wide has many children: as many as its argument says.
func wide(args []string) int {
	for range number(args) {
		spawn("member", nil)
	}
	say(Ready)
	return untilTold()
}

// deep is a chain, as deep as its argument says.
func deep(args []string) int {
	n := number(args)
	if n > 1 {
		spawn("deep", nil, strconv.Itoa(n-1), "inner")
	}
	say(Ready)
	if len(args) > 1 {
		return forEver()
	}
	return untilTold()
}

// zombies leaves twenty dead children uncollected.
func zombies([]string) int {
	for range 20 {
		spawn("no such victim", nil)
	}
	say(Ready)
	return untilTold()
}
