// Package cgroup knows where cgroups of version 2 are on this host, and how those that are made here are named.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"coppice.dev/coppice/internal/shim"
)

// Place is where a process stands in the host's cgroups.
type Place struct {
	Path  string   // in version 2, as cgroups(7) names it to this process; empty: the kernel has no version 2
	Mount string   // where the part of the hierarchy that has it is mounted; empty: nowhere to be seen
	Dir   string   // its folder, below Mount
	V1    []string // the controllers that version 1 holds, and its named hierarchies
}

// Own finds the place of this process. Where its folder cannot be seen, the error wraps fs.ErrNotExist, and what was found
// stands in the Place.
func Own() (Place, error) {
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Place{}, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Place{}, err
	}
	return find(cgroups, mounts)
}

// find reads the two files. Hosts have version 2 mounted at /sys/fs/cgroup, or at /sys/fs/cgroup/unified beside version 1.
func find(cgroups, mounts []byte) (Place, error) {
	var p Place
	for line := range strings.Lines(string(cgroups)) { // hierarchy:controllers:path; version 2 is 0 and has none
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(f) < 3:
		case f[0] == "0" && f[1] == "":
			p.Path = f[2]
		default:
			p.V1 = append(p.V1, strings.Split(f[1], ",")...)
		}
	}
	slices.Sort(p.V1)
	legacy := ""
	if len(p.V1) > 0 {
		legacy = fmt.Sprintf("; version 1 holds %s", strings.Join(p.V1, ", "))
	}
	switch {
	case p.Path == "":
		return p, fmt.Errorf("the kernel has no cgroup v2%s: %w", legacy, fs.ErrNotExist)
	case strings.HasPrefix(p.Path, "/.."):
		return p, fmt.Errorf("its own cgroup %s lies outside of its cgroup namespace", p.Path)
	}
	for root, point := range each(mounts) {
		below, ok := strings.CutPrefix(p.Path, strings.TrimSuffix(root, "/"))
		if ok && (below == "" || below[0] == '/') {
			p.Mount, p.Dir = point, filepath.Join(point, below)
			return p, nil
		}
	}
	return p, fmt.Errorf("cgroup v2 is not mounted where this process can see its own%s: %w", legacy, fs.ErrNotExist)
}

// Mounts are the places where version 2 is mounted, each an absolute path.
func Mounts() (out []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for _, point := range each(mounts) {
		out = append(out, point)
	}
	return out, nil
}

// each yields the root and the mount point of every cgroup2 in proc_pid_mountinfo(5).
func each(mounts []byte) func(yield func(root, point string) bool) {
	return func(yield func(root, point string) bool) {
		for line := range bytes.Lines(mounts) {
			before, after, _ := bytes.Cut(line, []byte(" - ")) // a space within a field is escaped
			f := bytes.Fields(before)
			if len(f) >= 6 && bytes.HasPrefix(after, []byte("cgroup2 ")) && !yield(unescape(f[3]), unescape(f[4])) {
				return
			}
		}
	}
}

// unescape undoes the octal escapes \040, \011, \012 and \134 of the kernel's tables.
func unescape(b []byte) string {
	var out strings.Builder
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+3 < len(b) {
			if n, err := strconv.ParseUint(string(b[i+1:i+4]), 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(b[i])
	}
	return out.String()
}

// Populated says whether a process is in the cgroup of this folder or below it; dead ones that nobody has collected do not
// count.
func Populated(dir string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err != nil {
		return false, err
	}
	return !strings.Contains("\n"+string(b), "\npopulated 0\n"), nil
}

// LeafPrefix begins the name of each cgroup that is made here. Behind it stand EngineName, a hyphen, and what is the leaf's
// own, without a hyphen. A cgroup cannot be renamed, and no other process has had that identity: so who finds a leaf knows
// whether its engine lives.
const LeafPrefix = "coppice-"

// EngineName is what identifies this process among all that have been since the host's start: its PID namespace, its pid
// there and its start time, with hyphens between them. The error says that /proc does not tell.
func EngineName() (string, error) {
	namespace, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return "", err
	}
	p, ok := shim.Read(os.Getpid())
	if !ok || !shim.OwnProc() {
		return "", errors.New("/proc is not there, or is that of another PID namespace")
	}
	return fmt.Sprintf("%s-%d-%d", strings.Trim(namespace, "pid:[]"), p.Pid, p.Start), nil
}
