package victim

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

func programs() map[string]program {
	return map[string]program{
		"sleeper": sleeper, "member": member, "deaf": deaf, "leaver": leaver, "wide": wide, "deep": deep,
		"daemon": daemon, "daemon-middle": daemonMiddle, "console": console, "breakaway": breakaway, "nested": nested,
		"hopper": hopper, "hop": hop, "launcher": launcher, "reparent": reparent,
		"crash": crash, "burner": burner, "inspect": inspect, "descriptors": descriptors, "handles": handles, "arguments": arguments,
	}
}

// witnessEnv hands the witness's handle on: only the first process of a victim has it from its C runtime's table.
const witnessEnv = "COPPICE_VICTIM_WITNESS"

// witness is the pipe's handle.
func witness() windows.Handle {
	if n, err := strconv.ParseUint(os.Getenv(witnessEnv), 10, 64); err == nil {
		return windows.Handle(n)
	}
	if table := runtimeTable(); len(table) > Witness {
		return table[Witness]
	}
	fail("find the witness", os.ErrNotExist)
	return 0
}

// runtimeTable reads the handles of the descriptors that this process was given for a C runtime, as one does.
func runtimeTable() []windows.Handle {
	var info struct {
		size         uint32
		_, _, _      *uint16
		_            [8]uint32
		_, tableSize uint16
		table        *byte
		_, _, _      windows.Handle
		_            *byte
	}
	windows.GetStartupInfo((*windows.StartupInfo)(unsafe.Pointer(&info)))
	if info.table == nil || info.tableSize < 4 {
		return nil
	}
	b := unsafe.Slice(info.table, info.tableSize)
	n := int(*(*uint32)(unsafe.Pointer(info.table)))
	const size = int(unsafe.Sizeof(windows.Handle(0)))
	if n < 0 || len(b) < 4+n*(1+size) {
		fail("read the descriptor table", os.ErrInvalid)
	}
	var out []windows.Handle
	for i := range n {
		var h windows.Handle
		copy((*[size]byte)(unsafe.Pointer(&h))[:], b[4+n+i*size:])
		out = append(out, h)
	}
	return out
}

// here says that this process has taken its place, and which it is.
func here() {
	line := []byte(fmt.Sprintf("%s %d\n", Ready, os.Getpid()))
	if err := windows.WriteFile(witness(), line, new(uint32), nil); err != nil {
		os.Exit(96)
	}
}

// spawn executes another victim, which keeps the witness and has no standard streams.
func spawn(name string, flags uint32, args ...string) error {
	hold := witness()
	return spawnAs(&syscall.SysProcAttr{CreationFlags: flags}, hold, name, args...)
}

// spawnAs has the witness by the handle that it will have in the new process.
func spawnAs(attr *syscall.SysProcAttr, hold windows.Handle, name string, args ...string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	attr.AdditionalInheritedHandles = []syscall.Handle{syscall.Handle(hold)}
	p, err := os.StartProcess(exe, Args(name, args...), &os.ProcAttr{Env: withWitness(hold), Files: []*os.File{null, null, null}, Sys: attr})
	if err != nil {
		return err
	}
	return p.Release()
}

func withWitness(hold windows.Handle) []string {
	return append(os.Environ(), fmt.Sprintf("%s=%d", witnessEnv, hold))
}

func mustSpawn(name string, flags uint32, args ...string) {
	if err := spawn(name, flags, args...); err != nil {
		fail("spawn", err)
	}
}

func fail(what string, err error) {
	fmt.Fprintln(os.Stderr, "victim:", what, err)
	os.Exit(97)
}

// sleeper does nothing.
func sleeper([]string) int {
	here()
	return untilTold()
}

// member is a descendant that does nothing.
func member([]string) int {
	here()
	return forEver()
}

// deaf ignores Ctrl+C and Ctrl+Break.
func deaf([]string) int {
	signal.Ignore(os.Interrupt)
	here()
	return untilTold()
}

// daemon leaves console and parents behind: it starts a process without a console, which starts another and exits.
func daemon([]string) int {
	mustSpawn("daemon-middle", windows.DETACHED_PROCESS|windows.CREATE_NEW_PROCESS_GROUP)
	here()
	return untilTold()
}

func daemonMiddle([]string) int {
	mustSpawn("member", windows.DETACHED_PROCESS|windows.CREATE_NEW_PROCESS_GROUP)
	return 0
}

// console gives a child a console of its own.
func console([]string) int {
	mustSpawn("member", windows.CREATE_NEW_CONSOLE)
	here()
	return untilTold()
}

// breakaway asks for a child outside of the job object. That is refused; if it is not, the child has to die all the same.
// It then has another, inside.
func breakaway([]string) int {
	if err := spawn("member", windows.CREATE_BREAKAWAY_FROM_JOB); err != nil {
		mustSpawn("member", 0)
	}
	here()
	return untilTold()
}

// nested makes a job object of its own, which does not kill and lets its members break away, and puts two children into
// it and itself; one of them asks to break away from there.
func nested([]string) int {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		fail("create a job object", err)
	}
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{}
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_BREAKAWAY_OK
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info))); err != nil {
		fail("allow to break away", err)
	}
	if err := windows.AssignProcessToJobObject(job, windows.CurrentProcess()); err != nil {
		fail("nest", err)
	}
	mustSpawn("member", 0)
	if spawn("member", windows.CREATE_BREAKAWAY_FROM_JOB) != nil {
		mustSpawn("member", 0)
	}
	here()
	return untilTold()
}

// leaver exits first and leaves children and a daemon.
func leaver([]string) int {
	for range 3 {
		mustSpawn("member", 0)
	}
	mustSpawn("daemon-middle", windows.DETACHED_PROCESS|windows.CREATE_NEW_PROCESS_GROUP)
	return 3
}

// launcher has a batch file, its first argument, start this program as a leaver, and exits with it.
func launcher(args []string) int {
	exe, err := os.Executable()
	if err != nil {
		fail("find the executable", err)
	}
	cmd := exec.Command(args[0], exe)
	cmd.Env = withWitness(witness())
	cmd.SysProcAttr = &syscall.SysProcAttr{AdditionalInheritedHandles: []syscall.Handle{syscall.Handle(witness())}}
	if err := cmd.Run(); cmd.ProcessState == nil {
		fail("run the batch file", err)
	}
	here()
	return untilTold()
}

// wide has many children: as many as its argument says.
func wide(args []string) int {
	for range number(args) {
		mustSpawn("member", 0)
	}
	here()
	return untilTold()
}

// deep is a chain, as deep as its argument says.
func deep(args []string) int {
	if n := number(args); n > 1 {
		mustSpawn("deep", 0, strconv.Itoa(n-1), "inner")
	}
	here()
	if len(args) > 1 {
		return forEver()
	}
	return untilTold()
}

// hops bounds a hopper's chains.
const hops = 200

// hopper hops for ever: a process starts another and exits, three at once. Whoever kills what it has seen is always late.
func hopper([]string) int {
	for range 3 {
		mustSpawn("hop", 0, strconv.Itoa(hops))
	}
	here()
	return untilTold()
}

func hop(args []string) int {
	if n := number(args); n > 1 {
		mustSpawn("hop", windows.CREATE_NEW_PROCESS_GROUP, strconv.Itoa(n-1))
	}
	return 0
}

// reparent has a child whose parent is another process, the one that its argument names by its id.
func reparent(args []string) int {
	pid, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		fail("find another process", err)
	}
	other, err := windows.OpenProcess(windows.PROCESS_CREATE_PROCESS|windows.PROCESS_DUP_HANDLE, false, uint32(pid))
	if err != nil {
		fail("open another process", err)
	}
	var hold windows.Handle // the child inherits the other's handles
	if err := windows.DuplicateHandle(windows.CurrentProcess(), witness(), other, &hold, 0, true,
		windows.DUPLICATE_SAME_ACCESS); err != nil {
		fail("give another process the witness", err)
	}
	if err := spawnAs(&syscall.SysProcAttr{ParentProcess: syscall.Handle(other)}, hold, "member"); err != nil {
		fail("spawn under another process", err)
	}
	here()
	return untilTold()
}

// crash dies of an exception that no handler takes.
func crash([]string) int {
	windows.NewLazySystemDLL("kernel32.dll").NewProc("RaiseException").Call(0xC0000094, 1, 0, 0)
	return 0
}

// burner uses CPU time until it has used the milliseconds of its argument, has a child do the same and exit, and then
// waits.
func burner(args []string) int {
	burn(number(args))
	if len(args) > 1 {
		return 0
	}
	exe, err := os.Executable()
	if err != nil {
		fail("find the executable", err)
	}
	if err := exec.Command(exe, Args("burner", args[0], "inner")[1:]...).Run(); err != nil {
		fail("burn", err)
	}
	here()
	return untilTold()
}

func burn(milliseconds int) {
	var created, ended, kernel, user windows.Filetime
	for {
		windows.GetProcessTimes(windows.CurrentProcess(), &created, &ended, &kernel, &user)
		if int(user.LowDateTime+kernel.LowDateTime) >= milliseconds*10000 {
			return
		}
	}
}

// inspect prints what it was born with, one line a fact: Handles, Environment, Dir.
func inspect([]string) int {
	dir, _ := os.Getwd()
	fmt.Printf("Handles: %d\nEnvironment: %q\nDir: %s\n", len(runtimeTable()), os.Environ(), dir)
	return 0
}

// descriptors echoes what it reads from a C runtime's descriptor 3 to its 4.
func descriptors([]string) int {
	c := windows.NewLazySystemDLL("msvcrt.dll")
	read, write := c.NewProc("_read"), c.NewProc("_write")
	var b [100]byte
	for {
		n, _, _ := read.Call(3, uintptr(unsafe.Pointer(&b)), uintptr(len(b)))
		if int32(n) <= 0 {
			return int(-int32(n))
		}
		if m, _, _ := write.Call(4, uintptr(unsafe.Pointer(&b)), n); m != n {
			return 98
		}
	}
}

// handles echoes what it reads from the first handle that COPPICE_WIRE names to the second.
func handles([]string) int {
	var r, w uint64
	if _, err := fmt.Sscanf(os.Getenv("COPPICE_WIRE"), "%d,%d", &r, &w); err != nil {
		fail("find the wire", err)
	}
	if _, err := io.Copy(os.NewFile(uintptr(w), "up"), os.NewFile(uintptr(r), "down")); err != nil {
		fail("echo", err)
	}
	return 0
}

// arguments prints its own, quoted, a line each.
func arguments(args []string) int {
	fmt.Print(strings.Join(quoted(args), ""))
	return 0
}

func quoted(args []string) (out []string) {
	for _, a := range args {
		out = append(out, strconv.Quote(a)+"\n")
	}
	return out
}
