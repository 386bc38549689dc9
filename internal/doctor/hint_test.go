package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
)

// tree of files, in the place of a host's.
type host map[string]string

func (h host) read(path string) ([]byte, error) {
	if text, ok := h[path]; ok {
		return []byte(text), nil
	}
	return nil, &os.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

func TestHost(t *testing.T) {
	h := hostOf(host{
		"/proc/sys/kernel/osrelease":                 "5.15.90.1-microsoft-standard-WSL2\n",
		"/proc/sys/kernel/unprivileged_userns_clone": "0\n",
		"/proc/self/status":                          "Name:\tcoppice\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n",
		"/proc/self/uid_map":                         "         0       1000          1\n",
		"/proc/1/comm":                               "systemd\n",
		"/proc/1/cgroup":                             "0::/kubepods/besteffort/pod1\n",
	}.read)
	if !h.WSL || !h.Filtered || !h.NoNewPrivileges || !h.UserNamespace || !h.Systemd || h.Container != "kubepods" ||
		h.Sysctls[sysctlClone] != "0" || len(h.Sysctls) != 1 {
		t.Errorf("%+v", h)
	}
	h = hostOf(host{
		"/proc/sys/kernel/osrelease": "6.8.0-generic", "/proc/1/comm": "bash", "/proc/1/cgroup": "0::/init.scope\n",
		"/proc/self/status": "Seccomp:\t0\n", "/proc/self/uid_map": "         0          0 4294967295\n",
	}.read)
	if h.WSL || h.Filtered || h.NoNewPrivileges || h.UserNamespace || h.Systemd || h.Container != "" || h.Evidence != "" {
		t.Errorf("%+v", h)
	}
	for mark, kind := range map[string]string{"/.dockerenv": "docker", "/run/.containerenv": "podman"} {
		if h := hostOf(host{mark: ""}.read); h.Container != kind || !strings.Contains(h.Evidence, mark) {
			t.Errorf("%s: %+v", mark, h)
		}
	}
}

func TestMapped(t *testing.T) {
	h := host{"map": "  0  100000  1000\n  65534  65534  1\n"}
	for id, want := range map[int]bool{0: true, 999: true, 1000: false, 65533: false, 65534: true, 65535: false} {
		if got := mapped(h.read, "map", id); got != want {
			t.Errorf("%d: %v", id, got)
		}
	}
	if mapped(h.read, "none", 0) {
		t.Error("mapped by nothing")
	}
}

// TestHints: each refusal that is known has the thing that lifts it.
func TestHints(t *testing.T) {
	sysctls := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	user := Host{User: 1000}
	for _, c := range []struct {
		feature string
		err     error
		host    Host
		want    string // in the hint; empty for no hint
	}{
		{"user-namespace", syscall.ENOSPC, Host{User: 1, Sysctls: sysctls(sysctlUsers, "0")}, "sysctl -w user.max_user_namespaces=15000 (now 0)"},
		{"user-namespace", syscall.EUSERS, Host{User: 1, UserNamespace: true}, "around this one"},
		{"user-namespace", syscall.EPERM, Host{User: 1, Sysctls: sysctls(sysctlClone, "0")}, "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"user-namespace", syscall.EPERM, Host{User: 1, Sysctls: sysctls(sysctlClone, "1", sysctlAppArmor, "1")}, "`userns,`"},
		{"user-namespace", syscall.EPERM, Host{User: 1, Filtered: true, Container: "docker"}, "--security-opt seccomp=unconfined"},
		{"user-namespace", syscall.EPERM, Host{User: 1, Filtered: true}, "RestrictNamespaces="},
		{"user-namespace", syscall.EPERM, Host{User: 1, Unmapped: true}, "--map-group"},
		{"user-namespace", syscall.EPERM, user, "security module"},
		{"user-namespace", syscall.EINVAL, user, "CONFIG_USER_NS"},
		{"user-namespace", syscall.ENOENT, Host{ForeignProc: true}, "mount -t proc"},
		{"pid-namespace", syscall.EPERM, Host{User: 0}, "--cap-add SYS_ADMIN"},
		{"pid-namespace", syscall.ENOSPC, Host{User: 0, Sysctls: sysctls(sysctlPids, "0")}, sysctlPids},
		{"pid-namespace", syscall.ENOSPC, Host{User: 1, Sysctls: sysctls(sysctlPids, "0", sysctlUsers, "9")}, sysctlPids},
		{"pid-namespace", syscall.ENOSPC, Host{User: 1, Sysctls: sysctls(sysctlPids, "9", sysctlUsers, "0")}, sysctlUsers},
		{"network-namespace", syscall.EINVAL, user, "CONFIG_NET_NS"},
		{"proc-mount", fmt.Errorf("mount /proc: %w", syscall.EPERM), Host{Container: "docker"}, "systempaths=unconfined"},
		{"proc-mount", fmt.Errorf("mount /proc: %w", syscall.EPERM), user, "hidden by another mount"},
		{"proc-mount", fmt.Errorf("start a child: %w", syscall.EPERM), Host{User: 0}, "SYS_ADMIN"},
		{"landlock", syscall.EOPNOTSUPP, user, "lsm="},
		{"landlock", syscall.ENOSYS, user, "CONFIG_SECURITY_LANDLOCK"},
		{"landlock", syscall.ENOSYS, Host{Filtered: true}, "seccomp filter hides it"},
		{"seccomp", syscall.EINVAL, user, "CONFIG_SECCOMP_FILTER"},
		{"cgroup", fs.ErrNotExist, user, "mount -t cgroup2"},
		{"cgroup", fs.ErrNotExist, Host{Systemd: true}, "systemd.unified_cgroup_hierarchy=1"},
		{"cgroup", fs.ErrNotExist, Host{Container: "docker"}, "--cgroupns=private"},
		{"cgroup-leaf", syscall.EROFS, Host{Container: "docker"}, "--cgroupns=private"},
		{"cgroup-leaf", syscall.EROFS, user, "ProtectControlGroups=no"},
		{"cgroup-leaf", syscall.EACCES, Host{User: 1, Systemd: true}, "Delegate=yes"},
		{"cgroup-leaf", syscall.EACCES, user, "chown"},
		{"cgroup-leaf", syscall.EBUSY, user, "cgroup of its own"},
		{"cgroup-leaf", syscall.EOPNOTSUPP, user, "threaded"},
		{"cgroup-controllers", fmt.Errorf("no pids in v2: version 1 holds pids"), user, "cgroup_no_v1=all"},
		{"cgroup-controllers", fmt.Errorf("no pids"), Host{Systemd: true}, "Delegate=yes"},
		{"cgroup-controllers", fmt.Errorf("no pids"), user, "cgroup.subtree_control"},
		{"landlock", syscall.EIO, user, ""},
		{"landlock", syscall.EMFILE, Host{ForeignProc: true}, "ulimit -n"},
		{"pid-namespace", syscall.EAGAIN, user, "ulimit -u"},
	} {
		got := hint(c.feature, fmt.Errorf("start a child: %w", c.err), c.host)
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s, %v, %+v: %q", c.feature, c.err, c.host, got)
		}
	}
}

// TestRungHints: a rung's hint is that of the feature that it lacks.
func TestRungHints(t *testing.T) {
	features := []Feature{{Name: "user-namespace", Reason: "no", Hint: "users"}, {Name: "pid-namespace", Works: true},
		{Name: "cgroup", Works: true}, {Name: "cgroup-leaf", Reason: "no", Hint: "leaf"}}
	for _, c := range []struct {
		rung string
		err  error
		host Host
		want string
	}{
		{"pidns-user", nil, Host{User: 1}, "users"}, {"pidns-user", syscall.EPERM, Host{}, "users"}, {"pidns", nil, Host{}, ""},
		{"cgroup", nil, Host{}, "leaf"}, {"subreaper", nil, Host{User: 1}, ""}, {"subreaper", nil, Host{ForeignProc: true}, procOwnHint},
		{"pidns", nil, Host{User: 1}, "run as root; or see pidns-user, which needs no rights"},
		{"pidns", syscall.EMFILE, Host{User: 1}, ownHint(syscall.EMFILE)},
	} {
		if got := rungHint(c.rung, c.err, features, c.host); got != c.want {
			t.Errorf("%s, %+v: %q", c.rung, c.host, got)
		}
	}
}
