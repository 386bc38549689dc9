package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"coppice.dev/coppice/bench/contest"
	"coppice.dev/coppice/tree"
)

// starts measures the time from a start to the first byte of /bin/echo, while the engine's heap grows.
func starts() error {
	fmt.Println("\n## Start to the first byte")
	fmt.Println("\nMedians of /bin/echo; each is ended and proved empty before the next one, outside of the measured time.")
	var all []contest.Entrant
	all = append(all, contest.Entrant{Name: "plain exec", Run: plain})
	bwrap, err := exec.LookPath("bwrap")
	if err == nil {
		all = append(all, contest.Entrant{Name: "bubblewrap", Run: func() (time.Duration, error) {
			return command(bwrap, "--unshare-pid", "--die-with-parent", "--dev-bind", "/", "/", "/bin/echo", "x")
		}})
	}
	for _, name := range tree.Rungs() {
		if t, err := tree.Start(context.Background(), tree.Spec{Path: "/bin/true", Rung: name}); err == nil {
			t.Wait(context.Background())
			all = append(all, contest.Entrant{Name: name, Run: func() (time.Duration, error) { return first(name, "") }})
		}
	}
	if small := smallShim(); small != "" {
		defer os.Remove(small)
		all = append(all, contest.Entrant{Name: tree.Rungs()[0] + " small", Run: func() (time.Duration, error) { return first("", small) }})
	}
	var ballast []byte
	fmt.Printf("\n  %-18s", "engine's heap")
	for _, c := range all {
		fmt.Printf("%14s", c.Name)
	}
	fmt.Println()
	for _, mib := range []int{0, 64, 256, 1024} {
		ballast = make([]byte, mib<<20)
		for i := 0; i < len(ballast); i += 4096 {
			ballast[i] = 1
		}
		m, err := contest.Medians(60, all)
		if err != nil {
			return err
		}
		fmt.Printf("  %-18s", fmt.Sprintf("%d MiB", len(ballast)>>20))
		for _, c := range all {
			fmt.Printf("%8.2f ms %.1fx", float64(m[c.Name].Nanoseconds())/1e6, float64(m[c.Name])/float64(m["plain exec"]))
		}
		fmt.Println()
	}
	return nil
}

func plain() (time.Duration, error) { return command("/bin/echo", "x") }

func command(args ...string) (time.Duration, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	cmd := &exec.Cmd{Path: args[0], Args: args, Stdout: w, Env: []string{}}
	began := time.Now()
	err = cmd.Start()
	w.Close()
	if err != nil {
		return 0, err
	}
	took, err := byteOf(r, began)
	return took, errors.Join(err, cmd.Wait())
}

func byteOf(r *os.File, began time.Time) (time.Duration, error) {
	r.SetReadDeadline(began.Add(10 * time.Second))
	_, err := r.Read(make([]byte, 1))
	return time.Since(began), err
}

func first(rung, small string) (time.Duration, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	began := time.Now()
	t, err := tree.Start(context.Background(), tree.Spec{Path: "/bin/echo", Args: []string{"echo", "x"}, Stdout: w, Rung: rung, Shim: small})
	w.Close()
	if err != nil {
		return 0, err
	}
	took, err := byteOf(r, began)
	_, _, ended := t.Wait(context.Background())
	return took, errors.Join(err, ended)
}

// smallShim builds the separate shim, if there is a compiler and this module's folder.
func smallShim() string {
	f, err := os.CreateTemp("", "coppice-shim")
	if err != nil {
		return ""
	}
	f.Close()
	if out := os.Getenv("COPPICE_BENCH_SHIM"); out != "" {
		return out
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", f.Name(), "coppice.dev/coppice/bench/shim")
	if cmd.Run() != nil {
		os.Remove(f.Name())
		return ""
	}
	os.Chmod(f.Name(), 0o755)
	return f.Name()
}
