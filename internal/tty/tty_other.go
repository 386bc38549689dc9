//go:build !unix

package tty

import (
	"errors"
	"fmt"
	"syscall"
)

// The signals of job control, which this system does not have: os/signal passes over these numbers.
const (
	Suspend  = syscall.Signal(-1)
	Halt     = syscall.Signal(-2)
	Continue = syscall.Signal(-3)
	Input    = syscall.Signal(-4)
	Output   = syscall.Signal(-5)
	Resize   = syscall.Signal(-6)
)

func open() (*Terminal, error) {
	return nil, fmt.Errorf("controlling terminal: %w", errors.ErrUnsupported)
}

func (t *Terminal) owner() (int, error) { return 0, errors.ErrUnsupported }

func (t *Terminal) setOwner(int) error { return errors.ErrUnsupported }

func ownGroup() int { return 0 }

func shellGroup() int { return 0 }

func groupOf(int) int { return 0 }

func alive(int) bool { return false }

func signalGroup(syscall.Signal) error { return errors.ErrUnsupported }

func die(syscall.Signal, bool) {}

// CatchStops: see the package.
const CatchStops = false

func stopGroup(syscall.Signal) func() { return func() {} }

func ignored(syscall.Signal) bool { return false }
