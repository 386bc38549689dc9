//go:build !unix && !windows

package worker

import "errors"

// notInherited refuses: the protocol has no descriptors on this system.
func notInherited(uintptr) error { return errors.ErrUnsupported }
