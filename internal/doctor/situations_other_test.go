//go:build !linux

package doctor

// situate is for Linux alone.
func situate(string) {}
