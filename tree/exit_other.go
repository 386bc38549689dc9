//go:build unix && !linux && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd

package tree

import (
	"errors"
	"os"
)

const maxRSSUnit = 1 << 10

// awaitExit is not there: the group is then not killed at the command's own end.
func awaitExit(*os.Process, chan<- os.Signal) error { return errors.ErrUnsupported }

func groupMembers(int, bool) []Member { return nil }

// allDead is not known here: the group is waited for until its dead are collected.
func allDead(int) bool { return false }

// sweep finds nobody here.
func sweep(int) []Member { return nil }

func anyAlive([]Member) bool { return false }

// sampled is not there: this system's process table is not read.
func sampled(int, bool) Usage { return Usage{} }
