package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// errUnguarded is why no rung here is guarded. What processes of one user may do to each other only another token takes from
// them (a lower integrity level, another user), and none is given here.
var errUnguarded = errors.New("a process of the same user can open the engine and take its job object, " +
	"or have another process of that user for the parent of a new one, which then belongs to no tree")

// jobObject holds the tree in a job object that kills when its last handle closes, and that nobody may break away from. The
// command is born in it, so that it dies with the engine at any moment of its life. Job objects nest (Windows 8): the
// engine may be a member of one itself, and a member may make its own.
//
// Of a worker that means harm that is not true, for the reasons in errUnguarded: so it is not reported as safe against the
// engine's death.
func jobObject() rung {
	return rung{
		name:  "job",
		loose: standing{Atomic, Facts{BornInside: true, Transparent: true}},
		start: func(ctx context.Context, s *Spec) (holder, error) {
			return startJob(ctx, s, func(files []*os.File, job windows.Handle) (*windows.ProcessInformation, error) {
				return create(s, files, job, 0)
			})
		},
	}
}

// lateJobObject is for systems that refuse to create a process inside a job object. The command is created suspended,
// assigned and then resumed: it is a member before its first instruction, but an engine that dies between creation and
// assignment leaves the suspended process behind, so this is not safe against the engine's death.
func lateJobObject() rung {
	return rung{
		name:  "job-late",
		loose: standing{Atomic, Facts{BornInside: true, Transparent: true}},
		start: func(ctx context.Context, s *Spec) (holder, error) {
			return startJob(ctx, s, func(files []*os.File, job windows.Handle) (*windows.ProcessInformation, error) {
				return createLate(s, files, job)
			})
		},
	}
}

// cutStatus is the exit status of what a cut ends: a number that no program exits with by itself, in the manner of the C++
// runtime's 0xE06D7363 ("msc").
const cutStatus = 0xE0435554 // "CUT"

// jobbed is a tree in a job object.
type jobbed struct {
	root    int
	process windows.Handle // the reaper's, to read and to close
	limits  bool           // all that the spec asked for is set
	done    chan struct{}
	status  Status

	mu     sync.Mutex
	job    windows.Handle // 0 once the job object has been seen empty
	killed bool
	last   Usage // what the job object counted in the end
}

type creation func(files []*os.File, job windows.Handle) (*windows.ProcessInformation, error)

func startJob(ctx context.Context, s *Spec, created creation) (holder, error) {
	files, null, err := s.files()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	limits, all := jobLimits(s)
	job, err := newJob(limits)
	if err != nil {
		return nil, &refusal{err}
	}
	p, err := created(files, job)
	if err != nil {
		windows.CloseHandle(job)
		return nil, err
	}
	windows.CloseHandle(p.Thread)
	j := &jobbed{root: int(p.ProcessId), process: p.Process, job: job, limits: all, done: make(chan struct{})}
	go j.reap()
	if ctx.Err() != nil {
		return nil, j.abandon(s, context.Cause(ctx))
	}
	return j, nil
}

// takenBack bounds the wait for a command that must not run after all. Only one that is stuck in a driver takes so long.
const takenBack = 5 * time.Second

// abandon takes back a command that was created in the instant in which its start was given up.
func (j *jobbed) abandon(s *Spec, cause error) error {
	j.kill()
	empty := make(chan error, 1)
	go func() { empty <- j.empty() }()
	late := time.NewTimer(takenBack)
	defer late.Stop()
	select {
	case err := <-empty:
		cause = errors.Join(cause, err)
	case <-late.C:
		cause = fmt.Errorf("%w (and what had begun is killed, but not seen to be gone)", cause)
	}
	return fmt.Errorf("start %s: %w", s.Path, cause)
}

// createLate makes the process suspended, so that it is a member of the job object before it runs.
func createLate(s *Spec, files []*os.File, job windows.Handle) (*windows.ProcessInformation, error) {
	p, err := create(s, files, 0, windows.CREATE_SUSPENDED)
	if err != nil {
		return nil, err
	}
	err = windows.AssignProcessToJobObject(job, p.Process)
	if err != nil {
		err = fmt.Errorf("assign to a job object: %w", err)
	} else if _, err = windows.ResumeThread(p.Thread); err != nil {
		err = fmt.Errorf("resume: %w", err)
	}
	if err != nil {
		windows.TerminateProcess(p.Process, cutStatus)
		windows.WaitForSingleObject(p.Process, uint32(takenBack/time.Millisecond))
		windows.CloseHandle(p.Process)
		windows.CloseHandle(p.Thread)
		return nil, &refusal{err}
	}
	return p, nil
}

// newJob makes a job object that kills when its last handle closes. Nobody else has one: it has no name, and no process
// inherits it. Without JOB_OBJECT_LIMIT_BREAKAWAY_OK a member cannot create a process outside.
func newJob(limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION) (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("create a job object: %w", err)
	}
	limits.BasicLimitInformation.LimitFlags |= windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
		windows.CloseHandle(job)
		return 0, fmt.Errorf("set kill-on-close and limits of a job object: %w", err)
	}
	return job, nil
}

// jobLimits are the limits of the spec that a job object has, and whether these are all that were asked for: it counts
// processes, not threads, and knows nothing of open or growing files. Wine 8 takes them and enforces none.
func jobLimits(s *Spec) (info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION, all bool) {
	flags := &info.BasicLimitInformation.LimitFlags
	if s.Limits.NoCore {
		*flags |= windows.JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION // no dialog, and no report with its memory
	}
	if s.Limits.Data != 0 {
		*flags |= windows.JOB_OBJECT_LIMIT_PROCESS_MEMORY
		info.ProcessMemoryLimit = uintptr(s.Limits.Data)
	}
	if s.Limits.Tasks != 0 {
		*flags |= windows.JOB_OBJECT_LIMIT_ACTIVE_PROCESS
		info.BasicLimitInformation.ActiveProcessLimit = uint32(min(s.Limits.Tasks, 1<<31))
	}
	return info, s.Limits.Files == 0 && s.Limits.File == 0 && !s.NoNewPrivileges && !s.DropCapabilities
}

// reap waits for the command's end and collects its status. That blocks a thread for each tree: the runtime's poller takes
// no process handle, and the system's own thread pool (RegisterWaitForSingleObject) would call back into Go from threads
// that are not Go's.
func (j *jobbed) reap() {
	defer close(j.done)
	defer windows.CloseHandle(j.process)
	if event, err := windows.WaitForSingleObject(j.process, windows.INFINITE); err != nil || event != windows.WAIT_OBJECT_0 {
		return
	}
	var code uint32
	var created, ended, kernel, user windows.Filetime
	if windows.GetExitCodeProcess(j.process, &code) != nil ||
		windows.GetProcessTimes(j.process, &created, &ended, &kernel, &user) != nil {
		return
	}
	j.mu.Lock()
	killed := j.killed
	j.mu.Unlock()
	j.status = Status{User: ticks(user), System: ticks(kernel)}
	if memory, err := memoryOf(j.process); err == nil {
		j.status.MaxRSS = int64(memory.peakWorkingSet)
	}
	if !killed || code != cutStatus {
		j.status.Known, j.status.Code = true, int(code)
	}
}

// ticks is a length of time in the system's units, of 100 ns.
func ticks(t windows.Filetime) time.Duration {
	return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * 100
}

func (j *jobbed) limited() bool { return j.limits }

func (j *jobbed) wait(func(os.Signal)) Status {
	<-j.done
	return j.status
}

func (j *jobbed) kill() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.job != 0 {
		j.killed = true
		windows.TerminateJobObject(j.job, cutStatus)
	}
}

// empty asks for the number of members until there is none. The job object would also send a message when it is empty, but
// Microsoft does not promise that it comes: it is no proof. If the number cannot be had any more, the job object is
// closed, which kills whoever is left.
func (j *jobbed) empty() error {
	<-j.done
	for pause := 50 * time.Microsecond; ; pause = min(pause*2, 20*time.Millisecond) {
		j.mu.Lock()
		counted, err := account(j.job)
		if err == nil && counted.activeProcesses > 0 {
			j.mu.Unlock()
			time.Sleep(pause)
			continue
		}
		j.last = counted.usage()
		windows.CloseHandle(j.job)
		j.job = 0
		j.mu.Unlock()
		return err
	}
}

func (j *jobbed) signal(sig os.Signal) error {
	if sig != os.Kill {
		return fmt.Errorf("signal %v: %w", sig, errors.ErrUnsupported)
	}
	j.kill()
	return nil
}

func (j *jobbed) alone() bool { return false }

// unlisted says that the members of a job object are always listed.
func unlisted() error { return nil }

func (j *jobbed) guard() error { return errUnguarded }

func (j *jobbed) seen() (int, []Member) {
	all, _ := j.members()
	return len(all), all
}
