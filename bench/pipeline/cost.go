package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// cost is what this process has taken so far: senders, receivers and the system under test, but no worker. Other work on the
// machine changes it far less than it changes a rate.
type cost struct {
	cpu     time.Duration
	written int64 // bytes for the disk
}

func costSoFar() (cost, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return cost{}, err
	}
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return cost{}, err
	}
	c := cost{cpu: time.Duration(used.Utime.Nano() + used.Stime.Nano())}
	_, tail, _ := strings.Cut(string(text), "\nwrite_bytes:")
	_, err = fmt.Sscan(tail, &c.written)
	return c, err
}

func (c cost) since(before cost) cost { return cost{c.cpu - before.cpu, c.written - before.written} }
