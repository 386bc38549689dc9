package shim

// Process is one process as /proc showed it. Pid and Start together are its identity: a pid alone may be another's by
// the time that it is used.
type Process struct {
	Pid    int
	Parent int
	Group  int
	Start  uint64 // clock ticks since boot
	Name   string // as the kernel keeps it: 15 bytes, the process may have chosen them
	State  byte   // 'R', 'S', 'T', 'Z', ... proc_pid_stat(5)

	User, System             uint64 // CPU time, in clock ticks of 10 ms
	ReapedUser, ReapedSystem uint64 // that of the children that it has waited for
	Threads                  int
	Resident                 int64 // in pages
}

// Dead says that nothing of the process runs any more. One whose main thread alone has ended is shown as a zombie too, and
// lives in its other threads.
func (p Process) Dead() bool { return p.State == 'X' || p.State == 'Z' && p.Threads <= 1 }

// Now reads the process again; false if it has gone and been collected, or if its pid is another's by now.
func (p Process) Now() (Process, bool) {
	now, ok := Read(p.Pid)
	return now, ok && now.Start == p.Start
}

// Alive says whether the process is there still and not dead.
func (p Process) Alive() bool {
	now, ok := p.Now()
	return ok && !now.Dead()
}

// Descendants returns the processes below root, root itself not included, from one read of /proc. While the tree
// changes it may miss some: whoever kills reads again until nothing is left.
func Descendants(root int) []Process {
	children := map[int][]Process{}
	for _, p := range All() {
		children[p.Parent] = append(children[p.Parent], p)
	}
	var out []Process
	for next := []int{root}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			out = append(out, p)
			next = append(next, p.Pid)
		}
		delete(children, next[0]) // a torn read could show a loop
	}
	return out
}

// InGroup returns the processes of a process group, from one read of /proc.
func InGroup(group int) []Process {
	var out []Process
	for _, p := range All() {
		if p.Group == group {
			out = append(out, p)
		}
	}
	return out
}
