//go:build !linux

package shim

// Read finds nobody: there is no /proc of this kind here.
func Read(int) (Process, bool) { return Process{}, false }

// All is nobody.
func All() []Process { return nil }

// OwnProc says that there is no /proc to read.
func OwnProc() bool { return false }

// Kill does nothing, since nobody was found.
func (p Process) Kill() {}
