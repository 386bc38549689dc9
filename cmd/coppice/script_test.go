package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs testdata/script. Beside testscript's own commands, the scripts have:
//
//	exits STATUS PROGRAM ARG...   run to the end, with this exit status and without a stack trace
//	start NAME PROGRAM ARG...     run in the background, with its output in NAME.out and NAME.err
//	await FILE REGEXP             wait until the file matches; named groups become variables
//	signal NAME SIGNAL            INT, TERM, HUP or KILL
//	ends NAME STATUS [WITHIN]     wait for its exit status; "killed" for a signal
//	until REGEXP PROGRAM ARG...   run again and again until its stdout matches
//	gone [WITHIN]                 wait until no process of the script is left
//	runs REGEXP                   wait until a process of the script has such arguments
//	intoclosed PROGRAM ARG...     run with a stdout that nobody reads: it must say nothing and end
//	replace FILE OLD NEW          replace text in a file, which must be there; \n is a line's end
//	freeport VAR                  a port that nothing listens on
//	json FILE                     each line is one JSON object
//	bytes FILE QUOTED             write a file from a Go string, without its quotes
//
// At the end of each script nothing that it started may be left. That was seen red with the kill taken out of finish, and
// with a script that ran sh -c 'sleep 60 &'.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"), RequireExplicitExec: true, RequireUniqueNames: true,
		Setup:     func(env *testscript.Env) error { return setup(t, env) },
		Condition: condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exitsWith, "start": start, "await": await, "signal": sendSignal, "ends": ends, "until": until, "gone": allGone, "runs": runs,
			"intoclosed": intoClosed, "replace": replace, "freeport": freePort, "json": jsonLines, "bytes": writeBytes,
		},
	})
}

// condition knows [nested]: unshare can make a user namespace that forbids PID namespaces inside.
func condition(name string) (bool, error) {
	if name != "nested" {
		return false, fmt.Errorf("no condition %q", name)
	}
	return exec.Command("unshare", "-U", "-r", "-m", "sh", "-c", "mount -t tmpfs none /sys/fs/cgroup && echo 0 > /proc/sys/user/max_pid_namespaces").Run() == nil, nil
}

// background are the commands that a script started.
type background struct {
	work     string
	commands map[string]*running
}

type running struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has been waited for
}

type backgroundKey struct{}

// setup gives a script a program of its own, by which all that it starts can be told.
func setup(t *testing.T, env *testscript.Env) error {
	bin := filepath.Join(env.WorkDir, ".bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return err
	}
	name := "coppice"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if err := os.Link(program, filepath.Join(bin, name)); err != nil {
		return err
	}
	path := []string{bin, env.Getenv("PATH")}
	if python := realPython(); python != "" {
		path = []string{bin, python, env.Getenv("PATH")}
	}
	env.Setenv("PATH", strings.Join(path, string(filepath.ListSeparator)))
	env.Setenv("TZ", "Asia/Kolkata") // +05:30: nobody's accident
	b := &background{work: env.WorkDir, commands: map[string]*running{}}
	env.Values[backgroundKey{}] = b
	env.Defer(func() { b.finish(t) })
	return nil
}

// finish ends what a script has not ended itself, and fails the test if that was not all.
func (b *background) finish(t *testing.T) {
	for _, r := range b.commands {
		r.cmd.Process.Kill() // an error if it has ended
		<-r.ended
	}
	left := func() []process { return processes(belongs(b.work)) }
	if !eventually(5*time.Second, func() bool { return len(left()) == 0 }) {
		t.Errorf("%s left processes behind: %v", filepath.Base(b.work), left())
		for _, p := range left() {
			if q, err := os.FindProcess(p.Pid); err == nil {
				q.Kill() // an error if it has ended
			}
		}
	}
}

func backgroundOf(ts *testscript.TestScript) *background {
	return ts.Value(backgroundKey{}).(*background)
}

func (b *background) get(ts *testscript.TestScript, name string) *running {
	r := b.commands[name]
	if r == nil {
		ts.Fatalf("nothing was started as %s", name)
	}
	return r
}

func only(ts *testscript.TestScript, neg bool, ok bool, usage string) {
	if neg || !ok {
		ts.Fatalf("usage: %s", usage)
	}
}

// status is how a program ended, in the words of the scripts.
func status(ts *testscript.TestScript, err error) string {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "0"
	case !errors.As(err, &exit):
		ts.Fatalf("%v", err)
	case exit.ExitCode() < 0:
		return "killed"
	}
	return strconv.Itoa(exit.ExitCode())
}

var trace = regexp.MustCompile(`(?m)^(goroutine \d+ |panic: |runtime error)`)

func exitsWith(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) > 1, "exits STATUS PROGRAM ARG...")
	got := status(ts, ts.Exec(args[1], args[2:]...))
	if got != args[0] {
		ts.Fatalf("exit status %s, not %s", got, args[0])
	}
	if trace.MatchString(ts.ReadFile("stderr")) {
		ts.Fatalf("stderr holds a stack trace")
	}
}

// command is a program with the script's environment.
func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	path := args[0]
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if found, err := exec.LookPath(filepath.Join(dir, args[0])); err == nil && !filepath.IsAbs(path) {
			path = found
		}
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "WORK", "HOME", "TMPDIR", "TMP", "TZ", "USERPROFILE", "SystemRoot", "GOCOVERDIR"} {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	return cmd
}

func start(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) > 1, "start NAME PROGRAM ARG...")
	b := backgroundOf(ts)
	if old := b.commands[args[0]]; old != nil {
		old.cmd.Process.Kill() // an error if it has ended
		<-old.ended
	}
	cmd := command(ts, args[1:])
	for name, to := range map[string]*io.Writer{".out": &cmd.Stdout, ".err": &cmd.Stderr} {
		f, err := os.Create(ts.MkAbs(args[0] + name))
		ts.Check(err)
		defer f.Close()
		*to = f
	}
	ts.Check(cmd.Start())
	r := &running{cmd, make(chan struct{})}
	b.commands[args[0]] = r
	go func() {
		defer close(r.ended)
		cmd.Wait() // ProcessState has it
	}()
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) == 2, "await FILE REGEXP")
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	var match []string
	if !eventually(patience, func() bool {
		text, _ := os.ReadFile(ts.MkAbs(args[0])) // none yet
		match = re.FindStringSubmatch(string(text))
		return match != nil
	}) {
		ts.Fatalf("%s does not match %s within %v:\n%s", args[0], args[1], patience, ts.ReadFile(args[0]))
	}
	for i, name := range re.SubexpNames() {
		if name != "" {
			ts.Setenv(name, match[i])
		}
	}
}

func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) == 2, "signal NAME SIGNAL")
	signals := map[string]os.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}
	s, ok := signals[args[1]]
	if !ok {
		ts.Fatalf("no signal %s", args[1])
	}
	ts.Check(backgroundOf(ts).get(ts, args[0]).cmd.Process.Signal(s))
}

// within is a bound that a script may give last.
func within(ts *testscript.TestScript, args []string, n int) time.Duration {
	if len(args) <= n {
		return patience
	}
	d, err := time.ParseDuration(args[n])
	ts.Check(err)
	return d
}

func ends(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) == 2 || len(args) == 3, "ends NAME STATUS [WITHIN]")
	r := backgroundOf(ts).get(ts, args[0])
	began := time.Now()
	select {
	case <-r.ended:
		ts.Logf("%s ended after %v", args[0], time.Since(began))
	case <-time.After(within(ts, args, 2)):
		ts.Fatalf("%s runs on; stderr:\n%s", args[0], ts.ReadFile(args[0]+".err"))
	}
	got := "killed"
	if code := r.cmd.ProcessState.ExitCode(); code >= 0 {
		got = strconv.Itoa(code)
	}
	text := ts.ReadFile(args[0] + ".err")
	if got != args[1] || trace.MatchString(text) {
		ts.Fatalf("exit status %s, to be %s without a stack trace; stderr:\n%s", got, args[1], text)
	}
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) > 1, "until REGEXP PROGRAM ARG...")
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	var out []byte
	if !eventually(patience, func() bool {
		if out, err = command(ts, args[1:]).Output(); err == nil && re.Match(out) {
			return true
		}
		time.Sleep(50 * time.Millisecond)
		return false
	}) {
		ts.Fatalf("%v, and no match for %s in:\n%s", err, args[0], out)
	}
}

func allGone(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) < 2, "gone [WITHIN]")
	var left []process
	began := time.Now()
	if !eventually(within(ts, args, 0), func() bool {
		left = processes(belongs(backgroundOf(ts).work))
		return len(left) == 0
	}) {
		ts.Fatalf("still there: %v", left)
	}
	ts.Logf("nothing is left after %v", time.Since(began))
}

func runs(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) == 1, "runs REGEXP")
	re := regexp.MustCompile(args[0])
	mine := belongs(backgroundOf(ts).work)
	if !eventually(patience, func() bool {
		return len(processes(func(p process) bool { return mine(p) && re.MatchString(strings.Join(p.argv, " ")) })) > 0
	}) {
		ts.Fatalf("no process %s", args[0])
	}
}

func intoClosed(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) > 0, "intoclosed PROGRAM ARG...")
	r, w, err := os.Pipe()
	ts.Check(err)
	r.Close()
	defer w.Close()
	cmd := command(ts, args)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = w, &said
	ended := status(ts, cmd.Run())
	ts.Logf("ended with %s", ended)
	if said.Len() > 0 {
		ts.Fatalf("it said: %s", said.String())
	}
}

func replace(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) == 3, "replace FILE OLD NEW")
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	with := strings.ReplaceAll(args[2], `\n`, "\n")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, args[1], with)), 0o600))
}

func freePort(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) == 1, "freeport VAR")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

func writeBytes(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) == 2, "bytes FILE QUOTED")
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

func jsonLines(ts *testscript.TestScript, neg bool, args []string) {
	only(ts, neg, len(args) == 1, "json FILE")
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			ts.Fatalf("%q: %v", line, err)
		}
	}
}
