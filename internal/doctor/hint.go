package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
)

// rests are the features that a rung needs, most telling first: the hint of the first that fails is the rung's.
var rests = map[string][]string{
	"pidns":      {"pid-namespace"},
	"pidns-user": {"user-namespace", "pid-namespace"},
	"cgroup":     {"cgroup", "cgroup-leaf"},
	"job":        {"job-nesting"},
	"job-late":   {"job-nesting"},
}

// rungHint says what would lift the refusal of a rung; a nil error is one whose kill was not proved.
func rungHint(rung string, err error, features []Feature, h Host) string {
	if own := ownHint(err); own != "" {
		return own
	}
	if rung == "pidns" && h.User != 0 {
		return "run as root; or see pidns-user, which needs no rights"
	}
	if h.ForeignProc {
		return procOwnHint
	}
	for _, f := range features {
		if !f.Works && f.Hint != "" && slices.Contains(rests[rung], f.Name) {
			return f.Hint
		}
	}
	return ""
}

// procOwnHint is for a PID namespace that has been entered without a /proc for it.
const procOwnHint = "mount -t proc proc /proc, in this PID namespace: the one that is there belongs to another (unshare --mount-proc)"

// hint says what would lift a refusal; empty if that is not known.
func hint(feature string, err error, h Host) string {
	if own := ownHint(err); own != "" {
		return own
	}
	if h.ForeignProc && is(err, syscall.ENOENT, syscall.EPERM, syscall.EACCES) {
		return procOwnHint
	}
	switch feature {
	case "user-namespace":
		return userNamespaceHint(err, h)
	case "pid-namespace":
		return namespaceHint(err, h, sysctlPids, "CONFIG_PID_NS")
	case "network-namespace":
		return namespaceHint(err, h, sysctlNets, "CONFIG_NET_NS")
	case "proc-mount":
		return procHint(err, h)
	case "landlock":
		return landlockHint(err, h)
	case "seccomp":
		if is(err, syscall.EINVAL, syscall.ENOSYS) {
			return "a kernel built with CONFIG_SECCOMP_FILTER"
		}
	case "cgroup":
		if errors.Is(err, fs.ErrNotExist) {
			return cgroupMountHint(h)
		}
		return "give the container a cgroup namespace of its own (docker run --cgroupns=private)"
	case "cgroup-leaf":
		return leafHint(err, h)
	case "cgroup-controllers":
		return controllersHint(err, h)
	case "job-nesting":
		return "Windows 8 or later; on older ones start it outside of any job object"
	}
	return ""
}

// ownHint is for what the doctor itself lacks, which says nothing of the host.
func ownHint(err error) string {
	switch {
	case is(err, syscall.EMFILE):
		return "doctor itself may open too few files to look (ulimit -n)"
	case is(err, syscall.EAGAIN):
		return "this user has as many processes as it may have, so that doctor cannot look (ulimit -u, or pids.max of a cgroup)"
	}
	return ""
}

// is says whether the error is one of the errnos.
func is(err error, errnos ...syscall.Errno) bool {
	return slices.ContainsFunc(errnos, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// exhausted says whether there is one namespace too many: ENOSPC, and EUSERS before Linux 4.9 (namespaces(7)). Only Linux
// gives these answers, so that one errno means the same wherever this runs.
func exhausted(err error) bool { return is(err, syscall.ENOSPC, syscall.EUSERS) }

func userNamespaceHint(err error, h Host) string {
	if exhausted(err) {
		return limitHint(h, sysctlUsers)
	}
	if is(err, syscall.EINVAL) {
		return "a kernel built with CONFIG_USER_NS"
	}
	if h.Unmapped && is(err, syscall.EPERM) {
		return "map this user and its group in the user namespace around this program (unshare --map-user and --map-group)"
	}
	if h.Sysctls[sysctlClone] == "0" {
		return "sysctl -w " + sysctlClone + "=1"
	}
	if h.Sysctls[sysctlAppArmor] == "1" {
		return "sysctl -w " + sysctlAppArmor + "=0, or an AppArmor profile for this program that has the line `userns,`"
	}
	return filterHint(err, h)
}

// namespaceHint is for the other namespaces, which everybody but root makes inside of a user namespace.
func namespaceHint(err error, h Host, sysctl, option string) string {
	switch {
	case exhausted(err) && h.Sysctls[sysctl] != "0" && h.User != 0:
		return limitHint(h, sysctlUsers)
	case exhausted(err):
		return limitHint(h, sysctl)
	case is(err, syscall.EINVAL):
		return "a kernel built with " + option
	case h.User != 0:
		return userNamespaceHint(err, h)
	}
	return filterHint(err, h)
}

func limitHint(h Host, sysctl string) string {
	have := h.Sysctls[sysctl]
	if have == "" {
		have = "unknown"
	}
	out := fmt.Sprintf("sysctl -w %s=15000 (now %s)", sysctl, have)
	if h.UserNamespace {
		out += "; here, or in a user namespace around this one"
	}
	return out
}

// filterHint is for a call that was not permitted, or that there is not, which a filter can say as well.
func filterHint(err error, h Host) string {
	if !is(err, syscall.EPERM, syscall.EACCES, syscall.ENOSYS) {
		return ""
	}
	var lift []string
	if h.Filtered && h.Container != "" {
		lift = append(lift, "--security-opt seccomp=unconfined, or a profile that allows clone, clone3 and unshare with namespaces")
	} else if h.Filtered {
		lift = append(lift, "a seccomp filter is in force: systemd's RestrictNamespaces= or SystemCallFilter=, or a sandbox around this program")
	}
	if h.User == 0 {
		lift = append(lift, "--cap-add SYS_ADMIN, in a container; CapabilityBoundingSet= in a unit")
	}
	if len(lift) == 0 {
		return "a security module (SELinux, AppArmor) or a chroot is in the way: the kernel's log says which"
	}
	return strings.Join(lift, "; and ")
}

func procHint(err error, h Host) string {
	switch {
	case is(err, syscall.EPERM) && strings.Contains(err.Error(), "mount /proc") && h.Container != "":
		return "--security-opt systempaths=unconfined: /proc is masked in part, and only one that is whole can be mounted again"
	case is(err, syscall.EPERM) && strings.Contains(err.Error(), "mount /proc"):
		return "a part of /proc is hidden by another mount: only where it is whole may it be mounted again"
	case exhausted(err) && h.Sysctls[sysctlMounts] == "0":
		return limitHint(h, sysctlMounts)
	case is(err, syscall.EACCES) && h.Container != "":
		return "--security-opt apparmor=unconfined"
	}
	return namespaceHint(err, h, sysctlPids, "CONFIG_PID_NS")
}

func landlockHint(err error, h Host) string {
	switch {
	case is(err, syscall.EOPNOTSUPP):
		return "boot with landlock in the list of lsm=: it is built in, and switched off"
	case is(err, syscall.ENOSYS, syscall.EPERM) && h.Filtered:
		return "Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK; or a seccomp filter hides it: one that knows its calls (a newer container runtime), or --security-opt seccomp=unconfined"
	case is(err, syscall.ENOSYS):
		return "Linux 5.13 or later, built with CONFIG_SECURITY_LANDLOCK"
	}
	return ""
}

func cgroupMountHint(h Host) string {
	switch {
	case h.Container != "":
		return "start the container with --cgroupns=private on a host with cgroup v2"
	case h.Systemd:
		return "boot with systemd.unified_cgroup_hierarchy=1"
	}
	return "mount -t cgroup2 none /sys/fs/cgroup (or, beside version 1, /sys/fs/cgroup/unified)"
}

func leafHint(err error, h Host) string {
	switch {
	case is(err, syscall.EROFS) && h.Container != "":
		return "--cgroupns=private and a writable mount: --privileged, or -v /sys/fs/cgroup:/sys/fs/cgroup:rw with a delegated slice"
	case is(err, syscall.EROFS):
		return "the cgroup mount is read-only: ProtectControlGroups=no in the unit, or mount -o remount,rw"
	case is(err, syscall.EOPNOTSUPP):
		return "start it in a domain cgroup: this one is threaded, where nothing can be killed whole"
	case is(err, syscall.ENOSYS, syscall.EINVAL):
		return "Linux 5.14 or later (clone3 into a cgroup, cgroup.kill); or a seccomp filter hides clone3"
	case errors.Is(err, fs.ErrNotExist):
		return cgroupMountHint(h)
	case is(err, syscall.EPERM, syscall.EACCES) && h.Systemd:
		return "Delegate=yes in the unit's [Service]; by hand: systemd-run --user --scope -p Delegate=yes coppice ..."
	case is(err, syscall.EPERM, syscall.EACCES):
		return "as root, give this user a cgroup (mkdir, chown it with its cgroup.procs and cgroup.subtree_control) and start it in there"
	case is(err, syscall.EBUSY):
		return "start it in a cgroup of its own, none that has controllers switched on for those below it"
	}
	return ""
}

func controllersHint(err error, h Host) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cgroupMountHint(h)
	case strings.Contains(err.Error(), "version 1 holds"):
		return "boot with cgroup_no_v1=all (with systemd: systemd.unified_cgroup_hierarchy=1)"
	case h.Systemd:
		return "Delegate=yes in the unit's [Service], which hands over all of them"
	}
	return "write +memory +pids into cgroup.subtree_control of the cgroups above"
}
