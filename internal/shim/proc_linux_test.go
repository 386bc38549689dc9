package shim

import (
	"os"
	"testing"
)

func TestParseStat(t *testing.T) {
	const tail = " S 7 9 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1\n"
	for _, name := range []string{"sh", "", ") S 1 (", "a b", "\n"} {
		p, ok := parseStat([]byte("12 (" + name + ")" + tail))
		if !ok || p != (Process{Pid: 12, Parent: 7, Group: 9, Start: 4242, Name: name, State: 'S', Threads: 1, Resident: 1}) {
			t.Errorf("%q: %+v, %v", name, p, ok)
		}
	}
	for _, torn := range []string{"", "12", "12 (sh", "12 (sh)", "(sh) S 1", "12 (sh) S 7 9"} {
		if p, ok := parseStat([]byte(torn)); ok {
			t.Errorf("%q: %+v", torn, p)
		}
	}
	if p, ok := Read(os.Getpid()); !ok || p.Parent != os.Getppid() {
		t.Errorf("%+v, %v", p, ok)
	}
}
