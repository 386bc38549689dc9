//go:build unix && !linux && !darwin

package tree

import "errors"

// groupMembers is empty: these systems' process tables are not read yet.
func groupMembers(int, bool) []Member { return nil }

// allDead is not known here: the group is waited for until its dead are collected.
func allDead(int) bool { return false }

// sweep finds nobody here.
func sweep(int) []Member { return nil }

// unlisted is why nobody is seen.
func unlisted() error { return errors.New("the processes of this system are not listed") }

func lives(Member) bool { return false }

// sampled is not there: this system's process table is not read.
func sampled(int, bool) Usage { return Usage{} }
