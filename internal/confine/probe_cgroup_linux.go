package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"coppice.dev/coppice/internal/shim"
	"golang.org/x/sys/unix"
)

// place is where this process stands in the host's cgroups.
type place struct {
	mount string   // of cgroup v2
	own   string   // its own cgroup of v2, as /proc/self/cgroup names it
	dir   string   // the folder of that
	v1    []string // the controllers that version 1 holds, and its named hierarchies
}

// stand finds the place. Its error says in words where v2 is missing, and wraps fs.ErrNotExist then.
func stand() (place, error) {
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return place{}, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return place{}, err
	}
	return standing(string(cgroups), string(mounts))
}

// standing reads cgroups(7) and proc_pid_mountinfo(5).
func standing(cgroups, mounts string) (place, error) {
	var p place
	for line := range strings.Lines(cgroups) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(f) < 3:
		case f[0] == "0" && f[1] == "":
			p.own = f[2]
		default:
			p.v1 = append(p.v1, strings.Split(f[1], ",")...)
		}
	}
	slices.Sort(p.v1)
	missing := ""
	if len(p.v1) > 0 {
		missing = fmt.Sprintf("; version 1 holds %s", strings.Join(p.v1, ", "))
	}
	if p.own == "" {
		return p, fmt.Errorf("the kernel has no cgroup v2%s: %w", missing, fs.ErrNotExist)
	}
	if strings.HasPrefix(p.own, "/..") {
		return p, fmt.Errorf("its own cgroup %s lies outside of its cgroup namespace", p.own)
	}
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if len(f) < 6 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		root := unescape(f[3])
		below, ok := strings.CutPrefix(p.own, strings.TrimSuffix(root, "/"))
		if ok && (below == "" || below[0] == '/') {
			p.mount = unescape(f[4])
			p.dir = filepath.Join(p.mount, below)
			return p, nil
		}
	}
	return p, fmt.Errorf("cgroup v2 is not mounted where this process can see its own%s: %w", missing, fs.ErrNotExist)
}

// unescape undoes what the kernel does to spaces and the like in mountinfo: \040.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func cgroupHere() (string, error) {
	p, err := stand()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(p.dir, "cgroup.procs")); err != nil {
		return "", fmt.Errorf("its own cgroup %s is hidden: %w", p.dir, errnoOf(err)) // another mount lies over it
	}
	kind := "v2 alone"
	if len(p.v1) > 0 {
		kind = fmt.Sprintf("v2 beside version 1, which holds %s", strings.Join(p.v1, ", "))
	}
	return fmt.Sprintf("%s, mounted at %s; own cgroup %s", kind, p.mount, p.own), nil
}

// cgroupControllers looks for those that bound a tree.
func cgroupControllers() (string, error) {
	p, err := stand()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(filepath.Join(p.dir, "cgroup.controllers"))
	if err != nil {
		return "", err
	}
	have := strings.Fields(string(b))
	var missing, held []string
	for _, c := range []string{"memory", "pids"} {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
			if slices.Contains(p.v1, c) {
				held = append(held, c)
			}
		}
	}
	switch {
	case len(held) > 0:
		return "", fmt.Errorf("no %s in v2: version 1 holds %s", strings.Join(missing, ", "), strings.Join(held, ", "))
	case len(missing) > 0:
		return "", fmt.Errorf("no %s in %s", strings.Join(missing, ", "), p.dir)
	}
	return strings.Join(have, ", "), nil
}

// leafMark ends the names of these leaves, but for a random number.
const leafMark = "-probe"

// leafName is one by which package tree sweeps a leaf whose maker was killed, as it does its own: coppice-, and then the
// maker's PID namespace, pid and start time.
func leafName() (string, error) {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	me, ok := shim.Read(os.Getpid())
	if !ok {
		return "", errors.New("no /proc of this PID namespace")
	}
	return fmt.Sprintf("coppice-%s-%d-%d%s", strings.Trim(namespace, "pid:[]"), me.Pid, me.Start, leafMark), nil
}

// inCgroupLeaf is for a child that is born in a new cgroup below our own, and dies of its cgroup.kill.
func inCgroupLeaf() (*trial, error) {
	p, err := stand()
	if err != nil {
		return nil, err
	}
	name, err := leafName()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(p.dir, name)
	if err != nil {
		return nil, fmt.Errorf("make a leaf in %s: %w", p.dir, errnoOf(err))
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the leaf: %w", err), os.Remove(dir))
	}
	return &trial{
		attr: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd},
		look: func() (string, error) { return killLeaf(dir) },
		undo: func() error {
			unix.Close(fd)
			return removeLeaf(dir)
		},
	}, nil
}

// tellCgroup says where the child was born.
func tellCgroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		own, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if ok && strings.Contains(filepath.Base(own), leafMark) {
			return "a leaf was made, a child born inside", nil
		}
	}
	return "", errors.New("the child was not born in the leaf")
}

func killLeaf(dir string) (string, error) {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		return "", fmt.Errorf("write its cgroup.kill: %w", errnoOf(err))
	}
	if err := awaitEmpty(dir); err != nil {
		return "", err
	}
	return " and killed by cgroup.kill", nil
}

// leafPatience bounds the wait for a leaf to be empty, once its only child has been killed or has ended.
const leafPatience = 2 * time.Second

func awaitEmpty(dir string) error {
	for limit := time.Now().Add(leafPatience); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		switch {
		case err != nil:
			return err
		case strings.Contains(string(b), "populated 0"):
			return nil
		case time.Now().After(limit):
			return fmt.Errorf("the leaf is still populated after %v", leafPatience)
		}
	}
}

func removeLeaf(dir string) error {
	if err := awaitEmpty(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("remove the leaf: %w", err)
	}
	return nil
}

// errnoOf leaves the path away, which the caller's words have.
func errnoOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
