package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"coppice.dev/coppice/bench/contest"
	"coppice.dev/coppice/internal/cgroup"
	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/tree"
	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sys/unix"
)

// kills measures the time from a kill to the proof that 1 to 1000 processes are gone.
func kills() error {
	fmt.Println("\n## Kill to proved empty")
	fmt.Println("\nMedians; a rung's Kill reports what it saw. The ratio is to the bare kernel call of its kind (root: SIGKILL to the init of a PID\n" +
		"namespace and wait for it; a write to cgroup.kill and populated 0).")
	var rungs []string
	for _, name := range tree.Rungs() {
		if t, err := tree.Start(context.Background(), tree.Spec{Path: "/bin/true", Rung: name}); err == nil {
			t.Wait(context.Background())
			rungs = append(rungs, name)
		}
	}
	for _, size := range []int{1, 10, 100, 1000} {
		var all []contest.Entrant
		if os.Geteuid() == 0 {
			all = append(all, contest.Entrant{Name: "bare pidns", Run: func() (time.Duration, error) { return bareNamespace(size) }})
			if own, err := cgroup.Own(); err == nil {
				all = append(all, contest.Entrant{Name: "bare cgroup", Run: func() (time.Duration, error) { return bareCgroup(own.Dir, size) }})
			}
		}
		for _, rung := range rungs {
			all = append(all, contest.Entrant{Name: rung, Run: func() (time.Duration, error) { return ofTree(rung, size) }})
		}
		all = append(all, contest.Entrant{Name: "/proc walk", Run: func() (time.Duration, error) { return walk(size) }})
		if size <= 100 { // it reads all of /proc once for each process: minutes for a thousand
			all = append(all, contest.Entrant{Name: "gopsutil recursion", Run: func() (time.Duration, error) { return recursion(size) }})
		}
		rounds := map[int]int{1: 60, 10: 40, 100: 30, 1000: 9}[size]
		m, err := contest.Medians(rounds, all)
		if err != nil {
			return err
		}
		fmt.Printf("\n%d processes (%d rounds)\n", size, rounds)
		for _, c := range all {
			floor := m["bare pidns"]
			if c.Name == "cgroup" || c.Name == "bare cgroup" {
				floor = m["bare cgroup"]
			}
			ratio := ""
			if floor > 0 {
				ratio = fmt.Sprintf("%5.2fx", float64(m[c.Name])/float64(floor))
			}
			fmt.Printf("  %-20s %9.3f ms  %s\n", c.Name, float64(m[c.Name].Nanoseconds())/1e6, ratio)
		}
	}
	return nil
}

// crowd is the arguments of a victim with so many processes.
func crowd(size int) []string {
	if size == 1 {
		return victim.Args("sleeper")
	}
	return victim.Args("wide", strconv.Itoa(size-1))
}

// gather waits until all of a crowd have said that they are there, and are asleep: a kill of programs that are still starting
// measures how they fight over the processors.
func gather(r *os.File, size int) error {
	r.SetReadDeadline(time.Now().Add(15 * time.Second))
	s := bufio.NewScanner(r)
	for range size {
		if !s.Scan() {
			return fmt.Errorf("the crowd does not gather: %w", errors.Join(s.Err(), os.ErrDeadlineExceeded))
		}
	}
	busy := func(p shim.Process) bool { return p.State != 'S' }
	for limit := time.Now().Add(15 * time.Second); slices.ContainsFunc(shim.Descendants(os.Getpid()), busy); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			return fmt.Errorf("the crowd does not rest: %w", os.ErrDeadlineExceeded)
		}
	}
	return nil
}

func ofTree(rung string, size int) (time.Duration, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	stdin, hold, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer hold.Close()
	t, err := tree.Start(context.Background(), tree.Spec{Path: "/proc/self/exe", Args: crowd(size), Rung: rung, Stdin: stdin, Extra: []*os.File{w}})
	w.Close()
	stdin.Close()
	if err != nil {
		return 0, err
	}
	err = gather(r, size)
	began := time.Now()
	report, killed := t.Kill(context.Background(), "bench")
	took := time.Since(began)
	if err == nil && report.Seen != size {
		err = fmt.Errorf("saw %d of %d", report.Seen, size)
	}
	return took, errors.Join(err, killed)
}

// start starts a crowd as a plain child of this process, or in its namespaces.
func start(size int, attr *syscall.SysProcAttr, words ...string) (*exec.Cmd, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	stdin, hold, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append(append([]string{"bench"}, words...), crowd(size)[1:]...)
	cmd.Stdin, cmd.ExtraFiles, cmd.SysProcAttr = stdin, []*os.File{w}, attr
	err = cmd.Start()
	w.Close()
	stdin.Close()
	runtime.SetFinalizer(cmd, func(*exec.Cmd) { hold.Close() })
	if err == nil {
		err = gather(r, size)
	}
	return cmd, r, err
}

const initWord = "coppice-bench-init"

// initMain is the init of the bare namespace: it starts the crowd and sleeps.
func initMain(args []string) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{"bench"}, args...)
	cmd.Stdin, cmd.ExtraFiles = os.Stdin, []*os.File{os.NewFile(victim.Witness, "witness")}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cmd.Wait()
	time.Sleep(victim.Lifetime)
	os.Exit(0)
}

func bareNamespace(size int) (time.Duration, error) {
	cmd, r, err := start(size, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}, initWord)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	began := time.Now()
	cmd.Process.Kill()
	cmd.Wait()
	return time.Since(began), nil
}

func bareCgroup(own string, size int) (time.Duration, error) {
	path := filepath.Join(own, fmt.Sprintf("bench-%d", os.Getpid()))
	if err := os.Mkdir(path, 0o755); err != nil {
		return 0, err
	}
	defer unix.Rmdir(path)
	folder, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer folder.Close()
	cmd, r, err := start(size, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(folder.Fd())})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	events, err := os.Open(filepath.Join(path, "cgroup.events"))
	if err != nil {
		return 0, err
	}
	defer events.Close()
	began := time.Now()
	if err := os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0); err != nil {
		return 0, err
	}
	for b := make([]byte, 256); ; {
		n, _ := events.ReadAt(b, 0)
		if strings.Contains(string(b[:n]), "populated 0") {
			break
		}
		time.Sleep(50 * time.Microsecond)
	}
	took := time.Since(began)
	cmd.Wait()
	return took, nil
}

// walk kills what it finds below the leader in /proc until it finds nobody.
func walk(size int) (time.Duration, error) {
	cmd, r, err := start(size, nil)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	began := time.Now()
	list := shim.Descendants(cmd.Process.Pid)
	cmd.Process.Kill()
	for _, p := range list {
		p.Kill()
	}
	cmd.Wait()
	for _, p := range list {
		for p.Alive() {
			time.Sleep(50 * time.Microsecond)
		}
	}
	return time.Since(began), nil
}

// recursion is what programs do with gopsutil: kill the children, then the process, recursively.
func recursion(size int) (time.Duration, error) {
	cmd, r, err := start(size, nil)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	began := time.Now()
	p, err := process.NewProcess(int32(cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var all []*process.Process
	var down func(*process.Process)
	down = func(p *process.Process) {
		children, _ := p.Children()
		for _, c := range children {
			down(c)
		}
		all = append(all, p)
		p.Kill()
	}
	down(p)
	cmd.Wait()
	for _, p := range all {
		for alive, _ := p.IsRunning(); alive; alive, _ = p.IsRunning() {
			if status, err := p.Status(); err != nil || len(status) == 1 && status[0] == process.Zombie {
				break
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return time.Since(began), nil
}
