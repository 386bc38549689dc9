package tree

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/victim"
)

const engineWord = "coppice-engine"

// engineMain is, by its arguments, an engine that starts one victim and then waits to be killed. Descriptor 3 is the
// witness, 4 the leader's standard input. It says "starting" and "started", and for a line on standard input it sends
// the victim SIGCONT and says "signalled".
func engineMain() {
	if len(os.Args) < 4 || os.Args[1] != engineWord {
		return
	}
	time.AfterFunc(victim.Lifetime, func() { os.Exit(95) })
	exe, _ := os.Executable()
	told := os.NewFile(4, "told")
	fmt.Println("starting")
	tree, err := Start(context.Background(), Spec{Path: exe, Args: victim.Args(os.Args[3], os.Args[4:]...), Rung: os.Args[2],
		Stdin: told, Extra: []*os.File{os.NewFile(3, "witness")}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("started")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		tree.Signal(syscall.SIGCONT)
		fmt.Println("signalled")
	}
	time.Sleep(2 * victim.Lifetime)
}

// engine is such a process.
type engine struct {
	t    *testing.T
	cmd  *exec.Cmd
	says *bufio.Scanner
	ask  *os.File
}

// startEngine starts one; its tree's leader stays until the test ends or the engine takes it along.
func startEngine(t *testing.T, x *witness, rung, name string, args ...string) *engine {
	t.Helper()
	told, hold := pipe(t)
	in, ask := pipe(t)
	out, say := pipe(t)
	out.SetReadDeadline(time.Now().Add(patience))
	cmd := exec.Command(executable(t), append([]string{engineWord, rung, name}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, say, os.Stderr
	cmd.ExtraFiles = []*os.File{x.hold, told}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	say.Close()
	x.hold.Close()
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait(); hold.Close() })
	return &engine{t: t, cmd: cmd, says: bufio.NewScanner(out), ask: ask}
}

func (e *engine) await(line string) {
	e.t.Helper()
	if !e.says.Scan() || e.says.Text() != line {
		e.t.Fatalf("engine says %q (%v), want %q", e.says.Text(), e.says.Err(), line)
	}
}

// kill kills it with -9 and collects it.
func (e *engine) kill() {
	e.cmd.Process.Kill()
	e.cmd.Wait()
}
