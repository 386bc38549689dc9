//go:build !linux && !windows

package confine

// probes are none: there is no feature here that a rung or a layer waits for.
func probes() []probe { return nil }
