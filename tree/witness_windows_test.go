package tree

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"coppice.dev/coppice/internal/victim"
	"golang.org/x/sys/windows"
)

// seen is a process of a victim, by a handle: its id cannot come to another while that is open.
type seen struct {
	pid    int
	handle windows.Handle
}

func (p seen) alive() bool {
	event, err := windows.WaitForSingleObject(p.handle, 0)
	return err != nil || event != windows.WAIT_OBJECT_0
}

// witness sees from outside who is left of a tree: all that was born of a victim holds its pipe, and each process that has
// said that it is ready is known by a handle.
type witness struct {
	t     *testing.T
	hold  *os.File // the end to hand over
	lines chan string
	eof   chan struct{}

	mu   sync.Mutex
	seen []seen
}

func newWitness(t *testing.T) *witness {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	x := &witness{t: t, hold: w, lines: make(chan string, 4096), eof: make(chan struct{})}
	go func() {
		defer close(x.eof)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			x.note(s.Text())
			x.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		w.Close()
		x.killAll()
		select {
		case <-x.eof:
		case <-time.After(2 * victim.Lifetime):
			t.Error("victims are left that cannot be killed, nor end by themselves")
		}
		for _, p := range x.seen {
			windows.CloseHandle(p.handle)
		}
	})
	return x
}

func (x *witness) note(line string) {
	_, number, _ := strings.Cut(line, " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return
	}
	const access = windows.SYNCHRONIZE | windows.PROCESS_TERMINATE | windows.PROCESS_QUERY_LIMITED_INFORMATION
	if h, err := windows.OpenProcess(access, false, uint32(pid)); err == nil {
		x.mu.Lock()
		x.seen = append(x.seen, seen{pid, h})
		x.mu.Unlock()
	}
}

// ready waits until n processes of the victim have said that they are there.
func (x *witness) ready(n int) {
	x.t.Helper()
	limit := time.After(victim.Lifetime) // under Wine a start may take long
	for range n {
		select {
		case line := <-x.lines:
			if !strings.HasPrefix(line, victim.Ready+" ") {
				x.t.Fatalf("victim says %q", line)
			}
		case <-x.eof:
			x.t.Fatal("all victims ended before they were ready")
		case <-limit:
			x.t.Fatal("victims are not ready in time")
		}
	}
}

// living are those of the processes seen that live, by their ids.
func (x *witness) living() (pids []int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.seen {
		if p.alive() {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

func (x *witness) killAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.seen {
		windows.TerminateProcess(p.handle, 1)
	}
}

// gone fails the test if a process that was seen lives, now, or if somebody holds the pipe.
func (x *witness) gone() {
	x.t.Helper()
	if left := x.living(); len(left) > 0 {
		x.t.Errorf("%v survive", left)
	}
	x.end()
}

// end waits for the end of the pipe.
func (x *witness) end() {
	x.t.Helper()
	select {
	case <-x.eof:
	case <-time.After(patience):
		x.t.Fatalf("the pipe is still held; seen and alive: %v", x.living())
	}
}

func victims(t *testing.T) []tried {
	return []tried{
		{name: "sleeper", ready: 1},
		{name: "deaf", ready: 1},
		{name: "daemon", ready: 2},
		{name: "console", ready: 2},
		{name: "breakaway", ready: 2},
		{name: "nested", ready: 3},
		{name: "launcher", args: []string{batchFile(t, `@"%~1" coppice-victim leaver`+"\r\n")}, ready: 5},
		{name: "leaver", ready: 0},
		{name: "wide", args: []string{"8"}, ready: 9},
		{name: "deep", args: []string{"5"}, ready: 5},
		{name: "hopper", ready: 1},
	}
}

func batchFile(t *testing.T, text string) string {
	t.Helper()
	path := t.TempDir() + `\of a victim.cmd`
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// eachVictim runs a test for all victims on the first rung. The other one differs in the first instant alone: two will do.
func eachVictim(t *testing.T, f func(t *testing.T, rung string, v tried)) {
	for _, rung := range Rungs() {
		for _, v := range victims(t) {
			if rung == "job-late" && v.name != "daemon" && v.name != "nested" {
				continue
			}
			t.Run(rung+"/"+v.name, func(t *testing.T) { f(t, rung, v) })
		}
	}
}

const engineWord = "coppice-engine"

// noRung has an engine start its victim without any tree.
const noRung = "none"

// engineMain is, by its arguments, an engine that starts one victim and then waits to be killed. Its standard input is the
// victim's, its standard error the witness.
func engineMain() {
	if len(os.Args) < 4 || os.Args[1] != engineWord {
		return
	}
	time.AfterFunc(victim.Lifetime, func() { os.Exit(95) })
	exe, _ := os.Executable()
	rung, args := os.Args[2], victim.Args(os.Args[3], os.Args[4:]...)
	if rung == noRung {
		s := &Spec{Path: exe, Args: args, Stdin: os.Stdin, Extra: []*os.File{os.Stderr}}
		files, _, err := s.files()
		if err == nil {
			_, err = create(s, files, 0, 0)
		}
		fmt.Println("started", err)
	} else {
		_, err := Start(context.Background(), Spec{Path: exe, Args: args, Rung: rung, Stdin: os.Stdin, Extra: []*os.File{os.Stderr}})
		fmt.Println("started", err)
	}
	time.Sleep(2 * victim.Lifetime)
}

// engine is such a process.
type engine struct {
	cmd  *exec.Cmd
	told *os.File
}

func startEngine(t *testing.T, x *witness, rung, name string, args ...string) *engine {
	t.Helper()
	stdin, told := pipe(t)
	out, say := pipe(t)
	cmd := exec.Command(executable(t), append([]string{engineWord, rung, name}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, say, x.hold
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	stdin.Close()
	say.Close()
	x.hold.Close()
	// An engine that says nothing ends by itself, and with it the pipe.
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "started <nil>\n" {
		t.Fatalf("engine says %q, %v", line, err)
	}
	return &engine{cmd, told}
}

// kill ends it as nothing else does (TerminateProcess), and collects it.
func (e *engine) kill() {
	e.cmd.Process.Kill()
	e.cmd.Wait()
}

var getHandleInformation = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetHandleInformation")

// openDescriptors counts this process's handles, by asking for each value that one can have. (GetProcessHandleCount is
// always 0 on Wine 8.)
func openDescriptors() (n int) {
	for handle := uintptr(4); handle < 4*4096; handle += 4 {
		var flags uint32
		if ok, _, _ := getHandleInformation.Call(handle, uintptr(unsafe.Pointer(&flags))); ok != 0 {
			n++
		}
	}
	return n
}

// ownChildren are the processes whose parent is this one.
func ownChildren() (out []Member) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		panic(err)
	}
	defer windows.CloseHandle(snapshot)
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err := windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if entry.ParentProcessID == uint32(os.Getpid()) {
			out = append(out, Member{Pid: int(entry.ProcessID), Name: syscall.UTF16ToString(entry.ExeFile[:])})
		}
	}
	return out
}

// lines reads what a command prints on a rung.
func lines(t *testing.T, spec Spec) []string {
	t.Helper()
	r, w := pipe(t)
	spec.Stdout, spec.Stderr = w, os.Stderr
	tree, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	b, err := io.ReadAll(r)
	status, _, werr := tree.Wait(within(t))
	if err != nil || werr != nil || !status.Success() {
		t.Fatalf("%v, %v, %v: %s", status, err, werr, b)
	}
	return strings.Split(strings.TrimSuffix(strings.ReplaceAll(string(b), "\r\n", "\n"), "\n"), "\n")
}
