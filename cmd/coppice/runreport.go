package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"coppice.dev/coppice/tree"
)

// runReport is what --report writes.
type runReport struct {
	Command []string `json:"command"`
	// Path is the file that was executed, or the last one that was tried.
	Path string `json:"path,omitempty"`
	// Exit is the status that run ends with; where that is 128 and a signal, run dies of the signal.
	Exit int `json:"exit"`
	// Ended is "exit" (by itself), "deadline", "signal" (run was told to), or "not started".
	Ended    string `json:"ended"`
	Signal   string `json:"signal,omitempty"` // what run was told to end it by
	Deadline bool   `json:"deadline_hit"`
	Error    string `json:"error,omitempty"`

	Started time.Time     `json:"started,omitzero"`
	Took    time.Duration `json:"took_ns"`
	Status  *runStatus    `json:"status,omitempty"` // nil if nothing was started, or if it died with its tree unseen

	Level  string       `json:"level,omitempty"`
	Facts  *tree.Facts  `json:"facts,omitempty"`
	Tried  []tree.Tried `json:"tried,omitempty"` // of a level that is not to be had
	Tree   *tree.Report `json:"tree,omitempty"`  // the cut: what was seen, and survivors
	Proved bool         `json:"proved_empty"`
	Usage  *tree.Usage  `json:"usage,omitempty"` // when it was asked to end, or had ended
}

// runStatus is the command's own.
type runStatus struct {
	Says   string        `json:"says"`
	Code   *int          `json:"code,omitempty"` // nil if it died of a signal
	Signal int           `json:"signal,omitempty"`
	OOM    tree.OOM      `json:"oom,omitempty"`
	User   time.Duration `json:"user_ns"`
	System time.Duration `json:"system_ns"`
	MaxRSS int64         `json:"max_rss"` // bytes
}

// tell says what was cut, writes the report, and returns how run ends in view of that.
func (r *commandRun) tell(v runEnd) runEnd {
	if line := r.line(); line != "" && !r.options.quiet {
		fmt.Fprintln(r.io.err, "coppice:", line)
	}
	if err := r.report.write(r.io.err, r.sum(v)); err != nil {
		return runEnd{code: exitOwn, err: errors.Join(v.err, fmt.Errorf("write the report: %w", err))}
	}
	return v
}

func (r *commandRun) sum(v runEnd) runReport {
	e := &r.ending
	out := runReport{Command: r.argv, Path: r.path, Exit: v.code, Ended: e.cause(), Deadline: e.deadline}
	if v.err != nil {
		out.Error = v.err.Error()
	}
	if e.asked != 0 {
		out.Signal = e.asked.String()
	}
	if r.tree == nil {
		out.Ended = "not started"
		var level *tree.LevelError
		if errors.As(v.err, &level) {
			out.Tried = level.Tried
		}
		return out
	}
	facts := r.tree.Facts()
	out.Level, out.Facts, out.Tree, out.Usage = r.tree.Level().String(), &facts, &e.report, &e.usage
	out.Proved, out.Started, out.Took = e.err == nil && r.tree.Level() >= tree.Tracked, r.began, e.took
	if s := e.status; s.Known {
		out.Status = &runStatus{Says: s.String(), Signal: int(s.Signal), OOM: s.OOM, User: s.User, System: s.System, MaxRSS: s.MaxRSS}
		if s.Signal == 0 {
			out.Status.Code = &s.Code
		}
	}
	return out
}

// line tells what was cut, if anything was, and why.
func (r *commandRun) line() string {
	if r.tree == nil || r.ending.err != nil {
		return "" // the error tells
	}
	line := r.cutLine()
	if r.tree.Level() >= tree.Tracked || r.options.rung != "" {
		return line // as it should be, or as it was asked for
	}
	weak := "level " + r.tree.Level().String() + " only: a process that left the process group is not seen, and lives on"
	if line == "" {
		return weak
	}
	return line + "; " + weak
}

func (r *commandRun) cutLine() string {
	e := &r.ending
	cut := ""
	if e.report.Seen > 0 {
		cut = "cut " + memberList(e.report.Named, e.report.Seen)
	} else if e.report.Unseen != "" {
		cut = "cut what there was, which could not be counted: " + e.report.Unseen
	}
	switch {
	case e.deadline && e.cut:
		return fmt.Sprintf("deadline of %v passed: %s", &r.options.deadline, cmp.Or(cut, "nothing was left to cut"))
	case e.deadline && cut == "":
		return fmt.Sprintf("deadline of %v passed: %s ended when it was asked to", &r.options.deadline, shellName(r.argv[0]))
	case e.cut || cut == "":
		return cut
	}
	left := cut + ", left behind by " + shellName(r.argv[0])
	if e.deadline {
		left = fmt.Sprintf("deadline of %v passed: %s", &r.options.deadline, left)
	}
	return left
}

// mostNamed is how many processes a line names.
const mostNamed = 6

// memberList counts and names processes. They chose their names themselves.
func memberList(some []tree.Member, all int) string {
	some = some[:min(len(some), mostNamed)]
	var b strings.Builder
	fmt.Fprintf(&b, "%d processes", all)
	if all == 1 {
		b.Reset()
		b.WriteString("1 process")
	}
	for i, m := range some {
		if i > 0 {
			b.WriteByte(',')
		} else {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, " %d %q", m.Pid, m.Name)
	}
	if more := all - len(some); more > 0 && len(some) > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}

// shellName is a command's name, safe to print.
func shellName(name string) string { return shellWord(printable(name)) }

// reportTimeout bounds the write to a pipe.
const reportTimeout = 5 * time.Second

// reportFile is where a report goes; nil is nowhere.
type reportFile struct{ path string }

// newReportFile looks before the command runs whether there can be a report.
func newReportFile(path string) (*reportFile, error) {
	f := &reportFile{path}
	info, err := os.Stat(path)
	switch {
	case path == "":
		return nil, nil
	case path == "-":
		return f, nil
	case err == nil && info.IsDir():
		return nil, fmt.Errorf("--report %s: this is a folder", path)
	case err == nil && !info.Mode().IsRegular():
		return f, nil
	}
	if dir, err := os.Stat(filepath.Dir(path)); err != nil || !dir.IsDir() {
		return nil, fmt.Errorf("--report %s: there is no folder %s", path, filepath.Dir(path))
	}
	if err == nil {
		var old *os.File
		if old, err = os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			old.Close()
		}
	} else {
		var beside *os.File
		if beside, err = createBeside(path); err == nil {
			beside.Close()
			os.Remove(beside.Name())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("--report %s: %w", path, err)
	}
	return f, nil
}

// write writes the whole report or none: who reads the file never sees a part.
func (f *reportFile) write(stderr io.Writer, report runReport) error {
	if f == nil {
		return nil
	}
	var b bytes.Buffer
	if err := printJSON(&b, report); err != nil {
		return err
	}
	if f.path == "-" {
		_, err := stderr.Write(b.Bytes())
		return err
	}
	return replaceFile(f.path, b.Bytes())
}

// replaceFile puts a file in the place of another at once. What is not a file, such as /dev/null or a pipe, is written to, and
// so is one of this program's own descriptors, /dev/stdout say, whatever it is.
func replaceFile(path string, b []byte) error {
	if f := ownDescriptor(path); f != nil {
		_, err := f.Write(b)
		return err // it stays open: it is somebody else's
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0) // a pipe that nobody reads is an error
		if err != nil {
			return err
		}
		f.SetWriteDeadline(time.Now().Add(reportTimeout)) // an error where nothing blocks
		_, err = f.Write(b)
		return errors.Join(err, f.Close())
	}
	real, unresolved := filepath.EvalSymlinks(path) // a link stays one
	if _, dangling := os.Readlink(path); unresolved != nil && dangling == nil {
		return os.WriteFile(path, b, 0o666)
	}
	if unresolved == nil {
		path = real
	}
	f, failed := createBeside(path)
	if failed != nil {
		if err == nil { // the file may be written, though nothing beside it
			return os.WriteFile(path, b, 0o666)
		}
		return failed
	}
	if err == nil {
		f.Chmod(info.Mode().Perm()) // as the one before; where that cannot be, as any new file
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name()) // the error before is the one to tell
	}
	return err
}

// createBeside makes a file in the folder of another, as permissive as any new one.
func createBeside(path string) (*os.File, error) {
	name := "." + filepath.Base(path) + "." + rand.Text()
	return os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// ownDescriptor is the descriptor that a path such as /dev/stdout leads to; nil for any other path.
func ownDescriptor(path string) *os.File {
	own := filepath.Join("/proc", strconv.Itoa(os.Getpid()), "fd")
	for range 8 { // /dev/stdout is a link to /proc/self/fd/1, and that one to whatever is open
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return nil
		}
		if n, err := strconv.ParseUint(filepath.Base(path), 10, 31); err == nil && dir == own {
			if std := []*os.File{os.Stdin, os.Stdout, os.Stderr}; n < uint64(len(std)) {
				return std[n]
			}
			return os.NewFile(uintptr(n), path)
		}
		next, err := os.Readlink(path)
		if err != nil {
			return nil
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(dir, next)
		}
		path = next
	}
	return nil
}
