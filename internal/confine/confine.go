// Package confine says what a worker may do. It decides; package tree and its shim carry it out before the worker's first
// instruction.
//
// What holds in every worker: an environment built from an allow-list, no descriptors but its own, a scratch folder of
// its own as working folder, the null device as stdin, no controlling terminal, no new privileges, no capabilities, core
// files of size 0, limits on descriptors, memory and file size. The layers of mode "isolated" (network, mounts, Landlock,
// seccomp) are not built yet, and asking for them is an error.
package confine

// Limits are what each process of a worker's tree may use.
type Limits struct {
	Files uint64 // open descriptors
	Data  uint64 // bytes of private writable memory
	File  uint64 // bytes of the largest file it may write
	Tasks uint64 // processes and threads of the tree, where the host can count them by tree
}

// Default are the limits of a worker whose spec says nothing. Data leaves room for the address space that a Go or Node
// runtime sets aside when it starts.
func Default() Limits {
	return Limits{Files: 1024, Data: 2 << 30, File: 1 << 30, Tasks: 512}
}
