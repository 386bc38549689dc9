package shim

import (
	"strconv"
	"syscall"

	"coppice.dev/coppice/internal/shim/sys"
)

// Read reads one process; false if there is none.
func Read(pid int) (Process, bool) {
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return Process{}, false
	}
	defer syscall.Close(fd)
	var b [1024]byte
	n, err := syscall.Read(fd, b[:])
	if err != nil || n <= 0 {
		return Process{}, false
	}
	return parseStat(b[:n])
}

// parseStat reads pid (name) state ppid pgrp ... starttime. The name may hold spaces and parentheses: it ends at the
// last one.
func parseStat(b []byte) (p Process, ok bool) {
	open, end := -1, -1
	for i, c := range b {
		if c == '(' && open < 0 {
			open = i
		}
		if c == ')' {
			end = i
		}
	}
	if open < 2 || end < open || end+4 > len(b) {
		return p, false
	}
	pid, err := strconv.Atoi(string(b[:open-1]))
	if err != nil {
		return p, false
	}
	p.Pid, p.Name, p.State = pid, string(b[open+1:end]), b[end+2]
	field, start := 4, end+4
	for i := start; i <= len(b); i++ {
		if i < len(b) && b[i] != ' ' && b[i] != '\n' {
			continue
		}
		n, _ := strconv.ParseUint(string(b[start:i]), 10, 64)
		switch field {
		case 4:
			p.Parent = int(n)
		case 5:
			p.Group = int(n)
		case 14:
			p.User = n
		case 15:
			p.System = n
		case 16:
			p.ReapedUser = n
		case 17:
			p.ReapedSystem = n
		case 20:
			p.Threads = int(n)
		case 22:
			p.Start = n
		case 24:
			p.Resident = int64(n)
			return p, true
		}
		field, start = field+1, i+1
	}
	return p, false
}

// OwnProc says whether /proc is there and shows this process's own PID namespace. Where it is that of an outer one, the
// numbers in it name others.
func OwnProc() bool {
	var b [16]byte
	n, err := syscall.Readlink("/proc/self", b[:])
	if err != nil {
		return false
	}
	pid, ok := number(string(b[:n]))
	return ok && pid == syscall.Getpid()
}

// All reads every process of /proc once; nothing of a /proc that is another namespace's.
func All() []Process {
	if !OwnProc() {
		return nil
	}
	fd, err := syscall.Open("/proc", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	var out []Process
	buf := make([]byte, 32<<10)
	for {
		n, err := syscall.ReadDirent(fd, buf)
		if err != nil || n <= 0 {
			return out
		}
		_, _, names := syscall.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if pid, ok := number(name); ok {
				if p, ok := Read(pid); ok {
					out = append(out, p)
				}
			}
		}
	}
}

// Kill sends SIGKILL to the process if it is still the same one.
func (p Process) Kill() {
	if p.Pid <= 1 || p.Dead() {
		return
	}
	fd, err := sys.PidfdOpen(p.Pid)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	// The descriptor pins whoever has the pid now; only then is it compared.
	if _, same := p.Now(); same {
		sys.PidfdSendSignal(fd, syscall.SIGKILL)
	}
}
