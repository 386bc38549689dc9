//go:build unix && !linux

package victim

import (
	"os"
	"strconv"
)

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

// The following are there on Linux alone.

func forker([]string) int { fail("forker", os.ErrInvalid); return 1 }

func killer([]string) int { fail("killer", os.ErrInvalid); return 1 }

func starver([]string) int { fail("starver", os.ErrInvalid); return 1 }

func inspect([]string) int { fail("inspect", os.ErrInvalid); return 1 }
