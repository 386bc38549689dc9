package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

var ntResumeProcess = windows.NewLazySystemDLL("ntdll.dll").NewProc("NtResumeProcess")

// jobObject holds the tree in a job object that kills when its last handle closes and that nobody may break away from.
// The command is created suspended, assigned and then resumed: it is a member before its first instruction, but an
// engine that dies between creation and assignment leaves the suspended process behind, so this is not safe against the
// engine's death.
func jobObject() rung {
	return rung{
		name:     "job",
		held:     standing{Atomic, Facts{BornInside: true, Transparent: true}},
		possible: func(*Spec) error { return nil },
		start:    startJob,
	}
}

// accounting is JOBOBJECT_BASIC_ACCOUNTING_INFORMATION of winnt.h, which x/sys does not have.
type accounting struct {
	userTime, kernelTime, periodUserTime, periodKernelTime           int64
	pageFaults, totalProcesses, activeProcesses, terminatedProcesses uint32
}

// jobbed is a tree in a job object.
type jobbed struct {
	process *os.Process
	done    chan struct{}
	status  Status

	mu  sync.Mutex
	job windows.Handle // 0 once the job has been seen empty
}

func startJob(_ context.Context, s *Spec) (h holder, err error) {
	files, null, err := s.files()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	job, err := newJob()
	if err != nil {
		return nil, &refusal{err}
	}
	defer func() {
		if err != nil {
			windows.CloseHandle(job)
		}
	}()
	attr := &syscall.SysProcAttr{CreationFlags: windows.CREATE_SUSPENDED | windows.CREATE_NEW_PROCESS_GROUP}
	for _, f := range files[3:] {
		attr.AdditionalInheritedHandles = append(attr.AdditionalInheritedHandles, syscall.Handle(f.Fd()))
	}
	inherit(files[3:], true)
	process, err := os.StartProcess(s.Path, s.Args, &os.ProcAttr{Dir: s.Dir, Env: s.Env, Files: files[:3], Sys: attr})
	inherit(files[3:], false)
	if err != nil {
		return nil, err
	}
	if err = enter(job, process); err != nil {
		process.Kill()
		process.Wait()
		return nil, &refusal{err}
	}
	j := &jobbed{process: process, job: job, done: make(chan struct{})}
	go j.reap()
	return j, nil
}

func inherit(files []*os.File, on bool) {
	var flag uint32
	if on {
		flag = windows.HANDLE_FLAG_INHERIT
	}
	for _, f := range files {
		windows.SetHandleInformation(windows.Handle(f.Fd()), windows.HANDLE_FLAG_INHERIT, flag)
	}
}

func newJob() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("create job object: %w", err)
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	// Without JOB_OBJECT_LIMIT_BREAKAWAY_OK a member cannot create a process outside.
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info))); err != nil {
		windows.CloseHandle(job)
		return 0, fmt.Errorf("set kill-on-close: %w", err)
	}
	return job, nil
}

// enter makes the suspended process a member and lets it go.
func enter(job windows.Handle, process *os.Process) error {
	var inner error
	err := process.WithHandle(func(handle uintptr) {
		if err := windows.AssignProcessToJobObject(job, windows.Handle(handle)); err != nil {
			inner = fmt.Errorf("assign to job object: %w", err)
			return
		}
		if status, _, _ := ntResumeProcess.Call(handle); status != 0 {
			inner = fmt.Errorf("resume: %w", windows.NTStatus(status))
		}
	})
	return errors.Join(err, inner)
}

func (j *jobbed) reap() {
	state, err := j.process.Wait()
	if err == nil {
		j.status = Status{Known: true, Code: state.ExitCode(), User: state.UserTime(), System: state.SystemTime()}
	}
	close(j.done)
}

func (j *jobbed) pid() (int, bool) { return j.process.Pid, true }

func (j *jobbed) wait(func(os.Signal)) Status {
	<-j.done
	return j.status
}

func (j *jobbed) kill() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.job != 0 {
		windows.TerminateJobObject(j.job, 1)
	}
}

// empty asks for the number of members until there is none: the job's message that it is empty is only a hint.
func (j *jobbed) empty() error {
	<-j.done
	for pause := 50 * time.Microsecond; ; pause = min(pause*2, 20*time.Millisecond) {
		var info accounting
		err := windows.QueryInformationJobObject(j.job, windows.JobObjectBasicAccountingInformation,
			uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil)
		if err != nil {
			return fmt.Errorf("count members of job object: %w", err)
		}
		if info.activeProcesses == 0 {
			j.mu.Lock()
			windows.CloseHandle(j.job)
			j.job = 0
			j.mu.Unlock()
			return nil
		}
		time.Sleep(pause)
	}
}

func (j *jobbed) signal(sig os.Signal) error {
	if sig != os.Kill {
		return fmt.Errorf("signal %v: %w", sig, errors.ErrUnsupported)
	}
	j.kill()
	return nil
}

func (j *jobbed) guard() error { return nil }

func (j *jobbed) usage() (Usage, error) { return Usage{}, errors.ErrUnsupported }

// members reads at most 1024 process ids of the job.
func (j *jobbed) members() ([]Member, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.job == 0 {
		return nil, nil
	}
	var list struct {
		assigned, listed uint32
		pids             [1024]uintptr
	}
	err := windows.QueryInformationJobObject(j.job, windows.JobObjectBasicProcessIdList,
		uintptr(unsafe.Pointer(&list)), uint32(unsafe.Sizeof(list)), nil)
	if err != nil && !errors.Is(err, windows.ERROR_MORE_DATA) {
		return nil, fmt.Errorf("list members of job object: %w", err)
	}
	out := make([]Member, 0, list.listed)
	for _, pid := range list.pids[:min(list.listed, uint32(len(list.pids)))] {
		out = append(out, Member{Pid: int(pid)})
	}
	return out, nil
}
