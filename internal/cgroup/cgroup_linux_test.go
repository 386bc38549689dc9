package cgroup

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
)

// TestFind: where a process stands in every kind of host.
func TestFind(t *testing.T) {
	const v2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	for _, c := range []struct {
		name, cgroups, mounts string
		dir                   string
		v1                    []string
		missing               bool
	}{
		{"unified", "0::/user.slice/a\n", v2, "/sys/fs/cgroup/user.slice/a", nil, false},
		{"the root", "0::/\n", v2, "/sys/fs/cgroup", nil, false},
		{"hybrid", "3:memory:/x\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/y\n",
			"36 24 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified/y",
			[]string{"cpu", "cpuacct", "memory", "name=systemd"}, false},
		{"a part is mounted", "0::/docker/abc/worker\n", "35 24 0:30 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"/sys/fs/cgroup/worker", nil, false},
		{"another part is mounted", "0::/docker/abcd\n", "35 24 0:30 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "", nil, true},
		{"the second mount is ours", "0::/a/b\n", "30 24 0:30 /c /mnt rw - cgroup2 none rw\n" + v2, "/sys/fs/cgroup/a/b", nil, false},
		{"a space", "0::/a\n", `35 24 0:30 / /my\040cgroup rw - cgroup2 none rw` + "\n", "/my cgroup/a", nil, false},
		{"only version 1", "3:memory:/x\n", "35 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "", []string{"memory"}, true},
		{"not mounted", "0::/\n", "35 24 0:30 / /proc rw - proc proc rw\n", "", nil, true},
		{"outside of its namespace", "0::/../b\n", v2, "", nil, false},
		{"nothing", "", "", "", nil, true},
	} {
		p, err := find([]byte(c.cgroups), []byte(c.mounts))
		if p.Dir != c.dir || !slices.Equal(p.V1, c.v1) || (err != nil) != (c.dir == "") || errors.Is(err, fs.ErrNotExist) != c.missing {
			t.Errorf("%s: %+v, %v", c.name, p, err)
		}
	}
}
