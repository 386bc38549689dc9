package tree

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// pipeRoom is how much a pipe holds, as on Linux.
const pipeRoom = 64 << 10

// linkPipe makes one pipe. The engine's end is overlapped, so that the runtime's poller takes it and deadlines hold; the
// command's is not, as every runtime expects. An anonymous pipe cannot be both: this is a named one, of one instance, whose
// name cannot be guessed and is taken before anybody hears of it.
func linkPipe(engineReads bool) (r, w *os.File, err error) {
	name, err := windows.UTF16PtrFromString(`\\.\pipe\coppice-` + rand.Text())
	if err != nil {
		return nil, nil, err
	}
	// What the other direction's right is for a pipe: to ask for its kind and size.
	side, access := uint32(windows.PIPE_ACCESS_OUTBOUND), uint32(windows.GENERIC_READ|windows.FILE_WRITE_ATTRIBUTES)
	if engineReads {
		side, access = windows.PIPE_ACCESS_INBOUND, windows.GENERIC_WRITE|windows.FILE_READ_ATTRIBUTES
	}
	server, err := windows.CreateNamedPipe(name, side|windows.FILE_FLAG_OVERLAPPED|windows.FILE_FLAG_FIRST_PIPE_INSTANCE,
		windows.PIPE_TYPE_BYTE|windows.PIPE_REJECT_REMOTE_CLIENTS, 1, pipeRoom, pipeRoom, 0, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("create a pipe: %w", err)
	}
	client, err := windows.CreateFile(name, access, 0, nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		windows.CloseHandle(server)
		return nil, nil, fmt.Errorf("open a pipe's other end: %w", err)
	}
	// Its only instance is taken by now: by this process, or else by one that is no worker of ours.
	var pid uint32
	if err = windows.GetNamedPipeClientProcessId(server, &pid); err == nil && pid != windows.GetCurrentProcessId() {
		err = fmt.Errorf("process %d has it", pid)
	}
	if err != nil {
		windows.CloseHandle(server)
		windows.CloseHandle(client)
		return nil, nil, fmt.Errorf("a pipe's other end: %w", err)
	}
	engine, worker := os.NewFile(uintptr(server), "link"), os.NewFile(uintptr(client), "worker's end of a link")
	if engineReads {
		return engine, worker, nil
	}
	return worker, engine, nil
}

var peekNamedPipe = windows.NewLazySystemDLL("kernel32.dll").NewProc("PeekNamedPipe")

func (l *Link) look([]*os.File) (pending Pending, unread bool) {
	raw, err := l.from.SyscallConn()
	if err != nil {
		return Unknown, false
	}
	pending = Unknown
	err = raw.Control(func(fd uintptr) {
		var left uint32
		ok, _, err := peekNamedPipe.Call(fd, 0, 0, 0, uintptr(unsafe.Pointer(&left)), 0)
		switch {
		case ok != 0 && left > 0:
			pending = Bytes
		case ok != 0:
			pending = Nothing
		case errors.Is(err, windows.ERROR_BROKEN_PIPE):
			pending = HungUp
		}
	})
	if err != nil {
		pending = HungUp // closed here
	}
	return pending, false
}
