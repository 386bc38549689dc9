package sandbox

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/wire"
)

// filter makes a pool that executes a shell script for each message.
func filter(t *testing.T, script string, change ...func(*Spec)) *stand {
	t.Helper()
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("missing: /bin/sh")
	}
	return pool(t, "none", append([]func(*Spec){func(s *Spec) {
		// The last argument is by which the processes are found from outside.
		s.Command = []string{"/bin/sh", "-c", script, s.Command[len(s.Command)-1]}
		s.Exec, s.ExecTo = true, []string{"out"}
		s.Settings = map[string]any{"a": "b c", "n": int64(7), "list": []any{"x"}}
		s.FrameCap = 8 << 20
	}}, change...)...)
}

// TestExec: a program that is no worker has a message on its stdin, and what it makes of it is the answer, whatever order it
// reads and writes in, and whoever it leaves behind.
func TestExec(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 256<<10) // 4 MiB, which no pipe holds
	for name, c := range map[string]struct{ script, body, want string }{
		"filter":                 {"tr a-z A-Z", "abc\x00\xff\r", "ABC\x00\xff\r"},
		"large, as it comes":     {"cat", large, large}, // red with the body written before anything is read
		"reads nothing":          {"echo ok", large, "ok\n"},
		"reads a line":           {"head -n 1", "one\n" + large, "one\n"},
		"says nothing":           {"cat >/dev/null", "abc", ""},
		"environment":            {`echo "$COPPICE_MESSAGE $COPPICE_ATTEMPT $COPPICE_SETTING_a $COPPICE_SETTING_n ${COPPICE_SETTING_list-none} ${COPPICE_WIRE-none}"`, "", "5 1 b c 7 none none\n"},
		"leaves a holder behind": {"sleep 60 & echo ok", "", "ok\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := filter(t, c.script)
			r, err := b.dispatch("f", 5, c.body, long)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" && len(r.Sends) != 0 || c.want != "" && (len(r.Sends) != 1 || r.Sends[0].To != "out" || string(r.Sends[0].Body) != c.want) {
				t.Errorf("%d sends, the first %.100q", len(r.Sends), bytes.Join(bodies(r), nil))
			}
			cuts, _ := b.told()
			if i := slices.IndexFunc(cuts, func(c Cut) bool { return c.Why != nil }); i >= 0 {
				t.Errorf("cut for %v", cuts[i].Why)
			}
		})
	}
}

func bodies(r Result) (out [][]byte) {
	for _, s := range r.Sends {
		out = append(out, s.Body)
	}
	return out
}

// TestExecFails: a program's status, its death, its silence and its flood are told apart, and the next message has a program
// of its own.
func TestExecFails(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   func(error) bool
		blame  Fault
	}{
		"status": {"echo no patient >&2; exit 3", as(func(e *HandlerError) bool {
			return e.Fault.Type == "exit status 3" && e.Fault.Text == "no patient"
		}), Message},
		"status, with an answer": {"echo half; exit 3", handlerError("exit status 3"), Message},
		"signal":                 {"kill -9 $$", as(func(e *CrashError) bool { return e.Status.Signal != 0 }), Worker},
		"hangs":                  {"sleep 60", deadline(), Worker},
		// Red without the wait for the exit behind the end of stdout (half an answer is taken for a whole one).
		"closes stdout and hangs": {"echo ok; exec >&-; sleep 60", deadline(), Worker},
		"too much":                {"yes", handlerError("result"), Message}, // red without io.LimitReader
		"too much on stderr":      {"yes >&2", as(func(e *LimitError) bool { return e.Limit == LimitOutput }), Worker},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeout := long
			if strings.Contains(name, "hangs") {
				timeout = 2 * time.Second
			}
			b := filter(t, `case "$COPPICE_MESSAGE" in 1) `+c.script+` ;; *) cat ;; esac`, func(s *Spec) { s.Limits.Output = 1 << 20 })
			if _, err := b.dispatch("f", 1, strings.Repeat("abc", 1<<20), timeout); !c.want(err) || Blame(err) != c.blame {
				t.Errorf("%T %v, blame %v", err, err, Blame(err))
			}
			if r, err := b.dispatch("f", 2, "abc", long); err != nil || string(r.Sends[0].Body) != "abc" {
				t.Errorf("the next: %v, %v", r, err)
			}
		})
	}
}

// TestExecRefused: what cannot be is refused.
func TestExecRefused(t *testing.T) {
	for name, s := range map[string]Spec{
		"standbys":       {Command: []string{"/bin/cat"}, Exec: true, Standbys: 1},
		"a file to load": {Command: []string{"/bin/cat"}, Exec: true, File: "/x"},
		"no program":     {Command: []string{"/bin/cat"}, ExecTo: []string{"out"}},
	} {
		if _, err := New(s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var unstarted []Unstarted
	b := filter(t, "cat", func(s *Spec) {
		s.Command = []string{"/nonexistent/program"}
		s.Observer.Unstarted = func(u Unstarted) { unstarted = append(unstarted, u) }
	})
	if _, err := b.dispatch("f", 1, "", long); !as(func(e *os.PathError) bool { return errors.Is(e, os.ErrNotExist) })(err) || Blame(err) != Nobody {
		t.Errorf("%T %v", err, err)
	}
	// Red without the call in grow.
	if len(unstarted) != 1 || !errors.Is(unstarted[0].Err, os.ErrNotExist) || len(unstarted[0].Steps) != 1 || unstarted[0].At.Before(unstarted[0].Steps[0].At) {
		t.Errorf("told of %+v", unstarted)
	}
	if _, err := b.Dispatch(t.Context(), Request{Phase: wire.PhaseRoute, Name: "f", Message: 1, Timeout: long}); err == nil {
		t.Error("it routes")
	}
}
