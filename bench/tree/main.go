// Command tree measures package tree beside floors and peers, in one run, and prints ratios:
//
//	cd bench && go run ./tree            all of it, as root and as another user
//	cd bench && go run ./tree kill       one part: kill, start or memory
//
// Rounds of the things that are compared alternate, so that a noisy machine hits them alike; medians are given. Linux
// alone. Needs root for the kernel's own calls, and bwrap on the PATH for that column.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"coppice.dev/coppice/internal/victim"
	_ "coppice.dev/coppice/tree/shimhook"
)

func main() {
	victim.Main()
	if len(os.Args) > 1 && os.Args[1] == initWord {
		initMain(os.Args[2:])
	}
	parts := map[string]func() error{"kill": kills, "start": starts, "memory": memory}
	wanted := os.Args[1:]
	if len(wanted) == 0 {
		wanted = []string{"kill", "start", "memory"}
	}
	for _, name := range wanted {
		part := parts[name]
		if part == nil {
			fmt.Fprintf(os.Stderr, "no part %q: there are kill, start, memory\n", name)
			os.Exit(2)
		}
		if err := part(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if os.Geteuid() == 0 && os.Getenv(other) == "" {
		if err := asOther(wanted); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// other is set in the run as another user.
const other = "COPPICE_BENCH_OTHER"

// asOther runs the parts again as a user without privileges, with a copy of this program that it can execute.
func asOther(parts []string) error {
	dir, err := os.MkdirTemp("", "coppice-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	const nobody = 65534
	exe := filepath.Join(dir, "tree")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(exe, b, 0o755)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		return err
	}
	fmt.Printf("\n# As uid %d\n", nobody)
	cmd := exec.Command(exe, parts...)
	cmd.Env = append(os.Environ(), other+"=1", "TMPDIR=/tmp")
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd.Run()
}
