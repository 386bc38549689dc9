package doctor

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"coppice.dev/coppice/internal/shim"
)

// Host is what of the surroundings decides what a refusal means and what lifts it. It is read, not tried; a system that
// does not tell leaves it empty.
type Host struct {
	Kernel string `json:"kernel,omitempty"`
	User   int    `json:"user"` // the effective user id; -1 on Windows
	// First: this process is the first of its PID namespace, as the program of a container.
	First bool `json:"first"`
	// ForeignProc: /proc is missing, or belongs to another PID namespace, so that no process can be found by it (Linux).
	ForeignProc bool `json:"foreign_proc"`
	// UserNamespace: this process is inside of a user namespace that does not map all users.
	UserNamespace bool `json:"user_namespace"`
	// Unmapped: the user namespace that it is in has no mapping for its own user or group.
	Unmapped bool `json:"unmapped"`
	// Container is the kind of container, if it is in one, and Evidence what says so.
	Container string `json:"container,omitempty"`
	Evidence  string `json:"evidence,omitempty"`
	Systemd   bool   `json:"systemd"` // process 1 is systemd
	WSL       bool   `json:"wsl"`     // the Windows Subsystem for Linux
	// Filtered: a seccomp filter is in force already. NoNewPrivileges: so is no_new_privs.
	Filtered        bool `json:"filtered"`
	NoNewPrivileges bool `json:"no_new_privileges"`
	// Sysctls are those that forbid namespaces, as far as this kernel has them.
	Sysctls map[string]string `json:"sysctls,omitempty"`
}

// The sysctls that hints speak of.
const (
	sysctlClone    = "kernel.unprivileged_userns_clone" // Debian's and Arch's
	sysctlAppArmor = "kernel.apparmor_restrict_unprivileged_userns"
	sysctlUsers    = "user.max_user_namespaces"
	sysctlPids     = "user.max_pid_namespaces"
	sysctlNets     = "user.max_net_namespaces"
	sysctlMounts   = "user.max_mnt_namespaces"
)

// files are where a Host is read from; tests put others in their place.
type files func(path string) ([]byte, error)

func look() Host {
	h := hostOf(os.ReadFile)
	h.User, h.First = os.Geteuid(), os.Getpid() == 1
	h.Unmapped = h.UserNamespace && !(mapped(os.ReadFile, "/proc/self/uid_map", h.User) && mapped(os.ReadFile, "/proc/self/gid_map", os.Getegid()))
	h.ForeignProc = h.Kernel != "" && !shim.OwnProc()
	if h.Container == "" && os.Getenv("container") != "" {
		h.Container, h.Evidence = os.Getenv("container"), "the environment names it"
	}
	return h
}

func hostOf(read files) Host {
	text := func(path string) string {
		b, err := read(path)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	h := Host{Kernel: text("/proc/sys/kernel/osrelease"), Sysctls: map[string]string{}}
	for _, name := range []string{sysctlClone, sysctlAppArmor, sysctlUsers, sysctlPids, sysctlNets, sysctlMounts} {
		if v := text("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); v != "" {
			h.Sysctls[name] = v
		}
	}
	h.WSL = strings.Contains(strings.ToLower(h.Kernel), "microsoft")
	for line := range strings.Lines(text("/proc/self/status")) {
		switch name, value, _ := strings.Cut(line, ":"); name {
		case "Seccomp":
			h.Filtered = strings.TrimSpace(value) == "2"
		case "NoNewPrivs":
			h.NoNewPrivileges = strings.TrimSpace(value) == "1"
		}
	}
	if b, err := read("/proc/self/uid_map"); err == nil { // one without any map is an empty file
		m := strings.Fields(string(b))
		h.UserNamespace = len(m) != 3 || m[0] != "0" || m[1] != "0" || m[2] != strconv.FormatUint(1<<32-1, 10)
	}
	h.Container, h.Evidence = containerOf(read, text)
	h.Systemd = text("/proc/1/comm") == "systemd"
	return h
}

// containerOf tells the kind of container from what each leaves lying about.
func containerOf(read files, text func(string) string) (kind, evidence string) {
	for _, mark := range []struct{ path, kind string }{{"/run/.containerenv", "podman"}, {"/.dockerenv", "docker"}} {
		if _, err := read(mark.path); err == nil {
			return mark.kind, mark.path + " exists"
		}
	}
	if kind := text("/run/systemd/container"); kind != "" {
		return kind, "/run/systemd/container names it"
	}
	cgroups, _ := read("/proc/1/cgroup") // none: nothing to see
	for _, kind := range []string{"kubepods", "docker", "libpod", "containerd", "lxc"} {
		if bytes.Contains(cgroups, []byte(kind)) {
			return kind, fmt.Sprintf("the cgroup of process 1 has %q in its name", kind)
		}
	}
	return "", ""
}

// mapped looks an id up in a map of user_namespaces(7): lines of first id inside, first id outside, count.
func mapped(read files, path string, id int) bool {
	b, _ := read(path) // none: nothing is mapped
	for line := range strings.Lines(string(b)) {
		var inside, outside, count int
		if n, _ := fmt.Sscan(line, &inside, &outside, &count); n == 3 && id >= inside && id-inside < count {
			return true
		}
	}
	return false
}
