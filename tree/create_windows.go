package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// jobListAttribute is PROC_THREAD_ATTRIBUTE_JOB_LIST of winbase.h (Windows 10), which x/sys lacks: the new process is a
// member of the job objects before its first instruction, and at no moment it is not.
const jobListAttribute = 0x0002000D

// startupInfo is STARTUPINFOEXW of winbase.h: that of x/sys has no names for the two fields of the C runtime.
type startupInfo struct {
	size                uint32
	_, _, _             *uint16
	_, _, _, _, _, _, _ uint32
	flags               uint32
	_, tableSize        uint16
	table               *byte
	standard            [3]windows.Handle
	attributes          *windows.ProcThreadAttributeList
}

// create makes the command's process, which inherits exactly the files: as its standard handles, and all of them as
// descriptors of a C runtime. It is born inside the job object, if one is given; a *refusal says that the system cannot
// do that. The handles are the caller's, to close.
func create(s *Spec, files []*os.File, job windows.Handle, flags uint32) (*windows.ProcessInformation, error) {
	path, line, err := commandLine(s)
	if err != nil {
		return nil, &os.PathError{Op: "exec", Path: s.Path, Err: err}
	}
	handles, err := inheritable(files)
	defer closeHandles(handles)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	env, err := environmentBlock(handed(s.Env, handles))
	if err != nil {
		return nil, fmt.Errorf("start %s: environment: %w", s.Path, err)
	}
	var dir *uint16
	if s.Dir != "" {
		if dir, err = windows.UTF16PtrFromString(s.Dir); err != nil {
			return nil, &os.PathError{Op: "chdir", Path: s.Dir, Err: err}
		}
	}
	attributes, err := attributeList(handles, job)
	if err != nil {
		return nil, err
	}
	defer attributes.Delete()
	table, err := runtimeTable(handles)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	info := startupInfo{flags: windows.STARTF_USESTDHANDLES, standard: [3]windows.Handle(handles),
		table: &table[0], tableSize: uint16(len(table)), attributes: attributes.List()}
	info.size = uint32(unsafe.Sizeof(info))
	flags |= windows.CREATE_UNICODE_ENVIRONMENT | windows.EXTENDED_STARTUPINFO_PRESENT | windows.CREATE_NEW_PROCESS_GROUP
	if s.NewSession {
		flags |= windows.CREATE_NO_WINDOW // a console of its own: it can press no key of the engine's
	}
	var p windows.ProcessInformation
	err = windows.CreateProcess(path, line, nil, nil, true, flags, env, dir, (*windows.StartupInfo)(unsafe.Pointer(&info)), &p)
	if err != nil {
		return nil, s.notCreated(err, job != 0)
	}
	return &p, nil
}

// notCreated says whose fault it was: the folder's, the command's, or the job object's.
func (s *Spec) notCreated(err error, inside bool) error {
	switch {
	case errors.Is(err, windows.ERROR_DIRECTORY):
		if _, bad := os.Stat(s.Dir); bad != nil {
			return bad
		}
		return &os.PathError{Op: "chdir", Path: s.Dir, Err: err}
	case inside && (errors.Is(err, windows.ERROR_INVALID_PARAMETER) || errors.Is(err, windows.ERROR_NOT_SUPPORTED) ||
		errors.Is(err, windows.ERROR_ACCESS_DENIED) && isMember(windows.CurrentProcess(), 0)):
		return &refusal{fmt.Errorf("create the process inside a job object: %w", err)}
	}
	return &os.PathError{Op: "exec", Path: s.Path, Err: err}
}

// inheritable duplicates the files' handles for the command alone: the engine's own stay as they are, so that one file can
// go to many commands at once, and no program that somebody else starts meanwhile gets it, unless he lets his inherit
// everything. The list must not name a handle twice, and does not, since each is new.
func inheritable(files []*os.File) ([]windows.Handle, error) {
	self := windows.CurrentProcess()
	var out []windows.Handle
	for i, f := range files {
		var h windows.Handle
		err := windows.DuplicateHandle(self, windows.Handle(f.Fd()), self, &h, 0, true, windows.DUPLICATE_SAME_ACCESS)
		if err != nil {
			return out, fmt.Errorf("descriptor %d: %w", i, err)
		}
		out = append(out, h)
	}
	return out, nil
}

func closeHandles(list []windows.Handle) {
	for _, h := range list {
		windows.CloseHandle(h)
	}
}

// attributeList names what the process inherits, and the job object that it is born in. The container keeps what the
// list points at.
func attributeList(handles []windows.Handle, job windows.Handle) (*windows.ProcThreadAttributeListContainer, error) {
	list, err := windows.NewProcThreadAttributeList(2)
	if err != nil {
		return nil, fmt.Errorf("attributes of a process: %w", err)
	}
	err = list.Update(windows.PROC_THREAD_ATTRIBUTE_HANDLE_LIST, unsafe.Pointer(&handles[0]),
		uintptr(len(handles))*unsafe.Sizeof(handles[0]))
	if err != nil {
		list.Delete()
		return nil, fmt.Errorf("list of handles to inherit: %w", err)
	}
	if job == 0 {
		return list, nil
	}
	jobs := []windows.Handle{job}
	if err := list.Update(jobListAttribute, unsafe.Pointer(&jobs[0]), unsafe.Sizeof(job)); err != nil {
		list.Delete()
		return nil, &refusal{fmt.Errorf("a process born inside a job object, which wants Windows 10: %w", err)}
	}
	return list, nil
}

// The flags of a C runtime's descriptor (FOPEN, FPIPE and FDEV of its internals; Microsoft publishes the source as
// corecrt_internal_lowio.h). Text mode is not set: bytes stay as they are.
const (
	runtimeOpen   = 0x01
	runtimePipe   = 0x08
	runtimeDevice = 0x40
)

// runtimeTable is what a C runtime hands over in STARTUPINFO.lpReserved2: a count, a byte of flags for each descriptor,
// and their handles. By it C programs, Python and Node find descriptors from 0 on.
func runtimeTable(handles []windows.Handle) ([]byte, error) {
	const size = int(unsafe.Sizeof(windows.Handle(0)))
	if most := (1<<16 - 1 - 4) / (1 + size); len(handles) > most {
		return nil, fmt.Errorf("%d descriptors: at most %d can be handed over: %w", len(handles), most, syscall.E2BIG)
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(handles)))
	for _, h := range handles {
		flags := byte(runtimeOpen)
		switch kind, _ := windows.GetFileType(h); kind {
		case windows.FILE_TYPE_PIPE:
			flags |= runtimePipe
		case windows.FILE_TYPE_CHAR:
			flags |= runtimeDevice
		}
		b = append(b, flags)
	}
	for _, h := range handles {
		b = append(b, binary.LittleEndian.AppendUint64(nil, uint64(h))[:size]...)
	}
	return b, nil
}

// handed puts into a Link's entry the values that its descriptors' handles have in the command. The last of two entries
// counts, and the first stays as it is.
func handed(env []string, handles []windows.Handle) []string {
	env = slices.Clone(env)
	for i, entry := range slices.Backward(env) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.EqualFold(name, LinkEnv) {
			continue
		}
		numbers := strings.Split(value, ",")
		for k, number := range numbers {
			if n, err := strconv.ParseUint(number, 10, 16); err == nil && n < uint64(len(handles)) {
				numbers[k] = strconv.FormatUint(uint64(handles[n]), 10)
			}
		}
		env[i] = name + "=" + strings.Join(numbers, ",")
		break
	}
	return env
}

// environmentBlock is the environment as CreateProcessW takes it: sorted by name, each entry ended by NUL, and one NUL more.
// SYSTEMROOT is added unless it is there: without it a program cannot even seed its random numbers (os/exec adds it, too).
func environmentBlock(env []string) (*uint16, error) {
	const root = "SYSTEMROOT"
	upper := func(entry string) string {
		name, _, _ := strings.Cut(entry, "=")
		return strings.ToUpper(name)
	}
	if !slices.ContainsFunc(env, func(e string) bool { return upper(e) == root }) {
		env = append(env, root+"="+os.Getenv(root))
	}
	slices.SortStableFunc(env, func(a, b string) int { return strings.Compare(upper(a), upper(b)) })
	var block []uint16
	for _, entry := range env {
		one, err := windows.UTF16FromString(entry)
		if err != nil {
			return nil, err // a NUL inside would end the entry
		}
		block = append(block, one...)
	}
	block = append(block, 0)
	return &block[0], nil
}

// longestLine is how many UTF-16 units a command line has at most, its NUL among them (CreateProcessW).
const longestLine = 32767

// commandLine is the file to execute and the command line from which its program takes the arguments apart again, by the
// rules of CommandLineToArgvW.
func commandLine(s *Spec) (path, line *uint16, err error) {
	file, err := absolute(s.Path, s.Dir)
	if err != nil {
		return nil, nil, err
	}
	text := windows.ComposeCommandLine(s.Args)
	if isBatch(file) {
		if file, text, err = batch(file, s.Args[1:]); err != nil {
			return nil, nil, err
		}
	}
	if path, err = windows.UTF16PtrFromString(file); err != nil {
		return nil, nil, err
	}
	units, err := windows.UTF16FromString(text)
	if err != nil {
		return nil, nil, err
	}
	if len(units) > longestLine {
		return nil, nil, fmt.Errorf("the command line has %d characters, of at most %d: %w", len(units)-1, longestLine-1, syscall.E2BIG)
	}
	return path, &units[0], nil
}

// absolute is the file as seen from dir, where CreateProcessW would look from the engine's folder.
func absolute(path, dir string) (string, error) {
	switch {
	case path == "":
		return "", syscall.ENOENT
	case filepath.IsAbs(path):
		return path, nil
	case filepath.VolumeName(path) != "":
		return "", fmt.Errorf("relative to a drive's folder: name the folder: %w", syscall.EINVAL)
	case os.IsPathSeparator(path[0]):
		dir, err := filepath.Abs(dir)
		return filepath.VolumeName(dir) + path, err
	}
	return filepath.Abs(filepath.Join(dir, path))
}

// isBatch says whether the system would give the file to cmd.exe. It overlooks dots and spaces at the end of a name, and
// so does this (CVE-2024-43402).
func isBatch(path string) bool {
	ext := filepath.Ext(strings.TrimRight(path, ". "))
	return strings.EqualFold(ext, ".cmd") || strings.EqualFold(ext, ".bat")
}

// unsafeInBatch are the characters that cmd.exe may act on, if not at its first reading then when the file uses its
// arguments without their quotes. No quoting holds against all of that (CVE-2024-24576).
const unsafeInBatch = "\"%!^&|<>()"

// batch has cmd.exe execute the file, as the system itself would, but with everything quoted that it may say, and without
// AutoRun (/d), delayed expansion (/v:off), and guesses about the outer quotes (/s).
func batch(file string, args []string) (path, line string, err error) {
	system, err := windows.GetSystemDirectory()
	if err != nil {
		return "", "", fmt.Errorf("find cmd.exe: %w", err)
	}
	path = filepath.Join(system, "cmd.exe")
	words := []string{}
	for i, word := range append([]string{filepath.FromSlash(file)}, args...) {
		if strings.ContainsAny(word, unsafeInBatch) || strings.ContainsFunc(word, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			what := "its path"
			if i > 0 {
				what = fmt.Sprintf("argument %d, %q,", i, word)
			}
			return "", "", fmt.Errorf("a batch file, and %s has characters that cmd.exe may act on: execute its program instead: %w",
				what, syscall.EINVAL)
		}
		words = append(words, `"`+word+`"`)
	}
	return path, `cmd.exe /e:on /v:off /d /s /c "` + strings.Join(words, " ") + `"`, nil
}
