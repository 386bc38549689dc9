package tree

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	isProcessInJob       = windows.NewLazySystemDLL("kernel32.dll").NewProc("IsProcessInJob")
	getProcessMemoryInfo = windows.NewLazySystemDLL("kernel32.dll").NewProc("K32GetProcessMemoryInfo")
)

// accounting is JOBOBJECT_BASIC_ACCOUNTING_INFORMATION of winnt.h, which x/sys does not have.
type accounting struct {
	userTime, kernelTime, periodUserTime, periodKernelTime           int64 // of 100 ns
	pageFaults, totalProcesses, activeProcesses, terminatedProcesses uint32
}

func account(job windows.Handle) (a accounting, err error) {
	err = windows.QueryInformationJobObject(job, windows.JobObjectBasicAccountingInformation,
		uintptr(unsafe.Pointer(&a)), uint32(unsafe.Sizeof(a)), nil)
	if err != nil {
		return a, fmt.Errorf("count the members of a job object: %w", err)
	}
	return a, nil
}

// usage is what the job object counts itself: of all members, those that have ended among them.
func (a accounting) usage() Usage {
	return Usage{User: time.Duration(a.userTime) * 100, System: time.Duration(a.kernelTime) * 100,
		Processes: int(a.activeProcesses), CPUExact: true}
}

// mostMembers bounds a list of members: what a tree can have at the same time is bounded by memory long before.
const mostMembers = 1 << 16

// memberIDs are the process ids of the job object's members.
func memberIDs(job windows.Handle) ([]uintptr, error) {
	for room := 64; ; room *= 4 {
		// JOBOBJECT_BASIC_PROCESS_ID_LIST: two numbers of 32 bits, then the list.
		list := make([]uintptr, 8/unsafe.Sizeof(uintptr(0))+uintptr(room))
		err := windows.QueryInformationJobObject(job, windows.JobObjectBasicProcessIdList,
			uintptr(unsafe.Pointer(&list[0])), uint32(uintptr(len(list))*unsafe.Sizeof(list[0])), nil)
		head := (*[2]uint32)(unsafe.Pointer(&list[0]))
		more := err == nil && head[0] > head[1] || errors.Is(err, windows.ERROR_MORE_DATA)
		switch {
		case more && room < mostMembers:
		case err != nil && !more:
			return nil, fmt.Errorf("list the members of a job object: %w", err)
		default:
			ids := list[len(list)-room:]
			return ids[:min(int(head[1]), room)], nil
		}
	}
}

// each calls f with a handle of every member that lives, or with 0 where a member lets nobody open it. Between the list and
// the opening a process id may have come to another process: so each is asked whether it is a member. (The right to ask
// is the limited one by Microsoft's word; Wine 8 wants the whole.)
func (j *jobbed) each(f func(pid int, process windows.Handle)) error {
	ids, err := memberIDs(j.job)
	for _, id := range ids {
		process, err := windows.OpenProcess(windows.PROCESS_QUERY_INFORMATION, false, uint32(id))
		switch {
		case err == nil:
			if isMember(process, j.job) {
				f(int(id), process)
			}
			windows.CloseHandle(process)
		case errors.Is(err, windows.ERROR_ACCESS_DENIED):
			f(int(id), 0)
		}
	}
	return err
}

// isMember asks whether a process is in a job object, or in any if that is 0.
func isMember(process, job windows.Handle) bool {
	var inside int32
	ok, _, _ := isProcessInJob.Call(uintptr(process), uintptr(job), uintptr(unsafe.Pointer(&inside)))
	return ok != 0 && inside != 0
}

// members are named by handle, not from a list of the whole system: that one could show another process of the same id,
// and takes as long as the system has processes. Start is when the process was created, in units of 100 ns since 1601.
func (j *jobbed) members() ([]Member, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.job == 0 {
		return nil, nil
	}
	var out []Member
	err := j.each(func(pid int, process windows.Handle) {
		if process == 0 {
			out = append(out, Member{Pid: pid})
			return
		}
		var created, ended, kernel, user windows.Filetime
		windows.GetProcessTimes(process, &created, &ended, &kernel, &user)
		out = append(out, Member{Pid: pid, Parent: parentOf(process), Name: nameOf(process),
			Start: uint64(created.HighDateTime)<<32 | uint64(created.LowDateTime)})
	})
	return out, err
}

// parentOf is the process id of who created it. Its creator may be gone, and the id another's.
func parentOf(process windows.Handle) int {
	var info windows.PROCESS_BASIC_INFORMATION
	if windows.NtQueryInformationProcess(process, windows.ProcessBasicInformation, unsafe.Pointer(&info),
		uint32(unsafe.Sizeof(info)), nil) != nil {
		return 0
	}
	return int(info.InheritedFromUniqueProcessId)
}

// nameOf is the name of the file that it executes.
func nameOf(process windows.Handle) string {
	var name [windows.MAX_LONG_PATH]uint16
	size := uint32(len(name))
	if windows.QueryFullProcessImageName(process, 0, &name[0], &size) != nil {
		return ""
	}
	return filepath.Base(windows.UTF16ToString(name[:size]))
}

// memoryCounters is PROCESS_MEMORY_COUNTERS of psapi.h, which x/sys does not have.
type memoryCounters struct {
	size, pageFaults                                                     uint32
	peakWorkingSet, workingSet                                           uintptr
	peakPagedPool, pagedPool, peakNonPagedPool, nonPagedPool, page, peak uintptr
}

func memoryOf(process windows.Handle) (m memoryCounters, err error) {
	m.size = uint32(unsafe.Sizeof(m))
	if ok, _, err := getProcessMemoryInfo.Call(uintptr(process), uintptr(unsafe.Pointer(&m)), uintptr(m.size)); ok == 0 {
		return memoryCounters{}, err
	}
	return m, nil
}

// usage takes CPU time and the number of processes from the job object's own account, which is exact, and sums up the
// working sets and threads of the members, which is not.
func (j *jobbed) usage() (Usage, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.job == 0 {
		return j.last, nil
	}
	counted, err := account(j.job)
	if err != nil {
		return Usage{}, err
	}
	u := counted.usage()
	threads, err := threadCounts()
	return u, errors.Join(err, j.each(func(pid int, process windows.Handle) {
		if m, err := memoryOf(process); err == nil {
			u.Memory += int64(m.workingSet)
		}
		u.Tasks += threads[pid]
	}))
}

// threadCounts are the numbers of threads of all processes of the system.
func threadCounts() (map[int]int, error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer windows.CloseHandle(snapshot)
	out := map[int]int{}
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		out[int(entry.ProcessID)] = int(entry.Threads)
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return out, nil
}
