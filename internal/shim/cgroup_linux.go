package shim

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// CgroupMounts are the places where cgroup2 is mounted, each an absolute path. Hosts have it at /sys/fs/cgroup, or at
// /sys/fs/cgroup/unified beside the first version.
func CgroupMounts() ([]string, error) {
	var out []string
	err := eachMount(func(_, point string) { out = append(out, point) })
	return out, err
}

// OwnCgroup is the folder of this process's own cgroup, of the second version. ENOENT says that there is none to be seen.
func OwnCgroup() (string, error) {
	b, err := readFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	own := ""
	for len(b) > 0 {
		var line []byte
		line, b = cutByte(b, '\n')
		if len(line) > 4 && string(line[:3]) == "0::" { // cgroups(7)
			own = string(line[3:])
		} else if string(line) == "0::/" {
			own = "/"
		}
	}
	if own == "" {
		return "", syscall.ENOENT
	}
	found := ""
	err = eachMount(func(root, point string) {
		switch {
		case root == "/":
			found = point + own
		case own == root || within(own, root+"/"):
			found = point + own[len(root):]
		}
	})
	switch {
	case err != nil:
		return "", err
	case found == "":
		return "", syscall.ENOENT
	}
	for len(found) > 1 && found[len(found)-1] == '/' {
		found = found[:len(found)-1]
	}
	return found, nil
}

// eachMount calls f with the root and the mount point of each cgroup2 in proc_pid_mountinfo(5).
func eachMount(f func(root, point string)) error {
	b, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for len(b) > 0 {
		var line []byte
		line, b = cutByte(b, '\n')
		var root, point, kind string
		for field, behind := 1, 0; len(line) > 0; field++ {
			var word []byte
			word, line = cutByte(line, ' ')
			switch {
			case field == 4:
				root = unescape(word)
			case field == 5:
				point = unescape(word)
			case behind > 0 && field == behind+1:
				kind = string(word)
			case field > 6 && string(word) == "-":
				behind = field
			}
		}
		if kind == "cgroup2" && point != "" {
			f(root, point)
		}
	}
	return nil
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

func cutByte(b []byte, sep byte) (before, after []byte) {
	for i, c := range b {
		if c == sep {
			return b[:i], b[i+1:]
		}
	}
	return b, nil
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
