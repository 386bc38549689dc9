package shim

import (
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// enter makes the namespaces, and in them the shim: a child of the engine's, since CLONE_PARENT makes it the sibling of this
// process, which then ends. Its user is mapped to itself; one that was mapped to 0 could trace the shim and rewrite it.
//
// The shim stays in this process's group, which the engine knows, and so can be collected even if this process were
// killed before it could tell its pid.
func enter(trigger int, value string) {
	control := trigger + 1
	ignore()
	tell := func(e Event) { unix.Write(control, e.Append(nil)) }
	uid, gid := strconv.Itoa(unix.Geteuid()), strconv.Itoa(unix.Getegid())
	c := &birth{flags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_PARENT, cgroup: -1, terminal: -1, ruleset: -1,
		// CAP_SETPCAP to empty the worker's bounding set, CAP_KILL for a worker that changes its user.
		raise: []uintptr{unix.CAP_SETPCAP, unix.CAP_KILL}}
	for i, m := range [...][2]string{
		{"/proc/self/setgroups", "deny"}, // before gid_map, see user_namespaces(7)
		{"/proc/self/uid_map", uid + " " + uid + " 1\n"},
		{"/proc/self/gid_map", gid + " " + gid + " 1\n"},
	} {
		path, _ := syscall.BytePtrFromString(m[0])
		c.maps[i] = mapping{path, []byte(m[1])}
	}
	pid, _, failed := c.bear("/proc/self/exe", []string{"coppice-shim"}, []string{Env + "=" + value, "GOMAXPROCS=1"})
	if failed != nil {
		tell(Event{Kind: Failed, A: uint64(failed.errno), B: uint64(StepNamespace)})
		exit()
	}
	tell(Event{Kind: Inside, A: uint64(pid)})
	exit()
}
