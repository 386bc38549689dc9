package shim

import (
	"bytes"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Cgroup is where a process stands in the hierarchy of cgroup version 2.
type Cgroup struct {
	Path  string // as cgroups(7) names it to this process; empty: the kernel has no version 2
	Mount string // where the part of the hierarchy that has it is mounted; empty: nowhere to be seen
	Dir   string // its folder, below Mount
}

// OwnCgroup finds that of this process. ENOENT says that its folder cannot be seen.
func OwnCgroup() (Cgroup, error) {
	cgroups, err := readFile("/proc/self/cgroup")
	if err != nil {
		return Cgroup{}, err
	}
	mounts, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return Cgroup{}, err
	}
	c := FindCgroup(cgroups, mounts)
	if c.Dir == "" {
		return c, syscall.ENOENT
	}
	return c, nil
}

// FindCgroup finds it in the two files of /proc. Hosts have it mounted at /sys/fs/cgroup, or at /sys/fs/cgroup/unified beside
// the first version.
func FindCgroup(cgroups, mounts []byte) (c Cgroup) {
	for line := range bytes.Lines(cgroups) {
		if path, ok := bytes.CutPrefix(bytes.TrimSuffix(line, newline), []byte("0::")); ok {
			c.Path = string(path)
		}
	}
	if c.Path == "" || strings.HasPrefix(c.Path, "/..") { // the second: outside of its cgroup namespace
		return c
	}
	eachMount(mounts, func(root, point string) {
		if below, ok := strings.CutPrefix(c.Path, strings.TrimSuffix(root, "/")); ok && c.Dir == "" && (below == "" || below[0] == '/') {
			c.Mount, c.Dir = point, point+strings.TrimSuffix(below, "/")
		}
	})
	return c
}

// CgroupMounts are the places where cgroup2 is mounted, each an absolute path.
func CgroupMounts() (out []string, err error) {
	mounts, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	eachMount(mounts, func(_, point string) { out = append(out, point) })
	return out, nil
}

// Populated says whether a process is in the cgroup of this folder or below it; dead ones that nobody has collected do not
// count.
func Populated(dir string) (bool, error) {
	b, err := readFile(dir + "/cgroup.events")
	if err != nil {
		return false, err
	}
	for line := range bytes.Lines(b) {
		if string(bytes.TrimSuffix(line, newline)) == "populated 0" {
			return false, nil
		}
	}
	return true, nil
}

// LeafPrefix begins the name of each cgroup that is made here. Behind it stand EngineName, a hyphen, and what is the leaf's
// own, without a hyphen. A cgroup cannot be renamed, and no other process has had that identity: so who finds a leaf knows
// whether its engine lives.
const LeafPrefix = "coppice-"

// EngineName is what identifies this process among all that have been since the host's start: its PID namespace, its pid
// there and its start time. ENOENT says that /proc does not tell.
func EngineName() (string, error) {
	var b [64]byte
	n, err := unix.Readlink("/proc/self/ns/pid", b[:]) // pid:[4026531836]
	if err != nil {
		return "", err
	}
	p, ok := Read(unix.Getpid())
	if !ok || !OwnProc() || n < len("pid:[]") {
		return "", syscall.ENOENT
	}
	return string(b[len("pid:["):n-1]) + "-" + strconv.Itoa(p.Pid) + "-" + strconv.FormatUint(p.Start, 10), nil
}

var newline = []byte("\n")

// eachMount visits the root and the mount point of each cgroup2 in proc_pid_mountinfo(5).
func eachMount(mounts []byte, visit func(root, point string)) {
	for line := range bytes.Lines(mounts) {
		before, after, _ := bytes.Cut(line, []byte(" - ")) // a space within a field is escaped
		if f := bytes.Fields(before); len(f) >= 6 && bytes.HasPrefix(after, []byte("cgroup2 ")) {
			visit(unescape(f[3]), unescape(f[4]))
		}
	}
}

// unescape undoes the octal escapes \040, \011, \012 and \134 of the kernel's tables.
func unescape(b []byte) string {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+3 < len(b) {
			out = append(out, (b[i+1]-'0')<<6|(b[i+2]-'0')<<3|(b[i+3]-'0'))
			i += 3
			continue
		}
		out = append(out, b[i])
	}
	return string(out)
}

// maxTable bounds what is read of the kernel's tables.
const maxTable = 4 << 20

func readFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var out []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n <= 0:
			return out, nil
		case len(out)+n > maxTable:
			return nil, syscall.EFBIG
		default:
			out = append(out, buf[:n]...)
		}
	}
}
