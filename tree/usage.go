package tree

import "time"

// Usage is what a tree uses, as one look at the system showed it.
type Usage struct {
	// User and System are the CPU time of all of the tree so far, with those of its processes that have ended.
	User   time.Duration `json:"user_ns"`
	System time.Duration `json:"system_ns"`
	// Memory is what all of the tree holds resident now, in bytes. Where it is sampled, what processes share counts once
	// for each of them.
	Memory int64 `json:"memory"`
	// Processes and Tasks are how many live now; a task is a thread.
	Processes int `json:"processes"`
	Tasks     int `json:"tasks"`
	// CPUExact and MemoryExact say that the system itself keeps the account (a cgroup, a job object). Otherwise it is
	// summed up from one read of all processes: what ended with nobody waiting for it is missing, and so is what
	// escaped.
	CPUExact    bool `json:"cpu_exact"`
	MemoryExact bool `json:"memory_exact"`
}

// Usage reads what the tree uses now. Once the tree has ended, it is zero but for what the system still knows: ask
// before.
func (t *Tree) Usage() (Usage, error) { return t.hold.usage() }
