package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// The test binary runs itself as one of these.
const (
	childEnv     = "COPPICE_SQLITE_TEST_CHILD"
	childPathEnv = "COPPICE_SQLITE_TEST_PATH"
)

func runChild(name, path string) int {
	s, err := Open(context.Background(), path, Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("open")
	switch name {
	case "hold":
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes it, or dies
	case "write":
		childWrite(s)
	}
	if err := s.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// childWrite receives from four producers and takes every message through to its delivery, printing each step once it is
// committed, until it is killed.
func childWrite(s *Store) {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	for p := range 4 {
		inbound := "in" + strconv.Itoa(p)
		go func() {
			// Goes on counting where the last life stopped: what it could not print may be there or not.
			for n := childCount(s, inbound) + 1; ; n++ {
				id, err := s.Receive(ctx, message.Incoming{Inbound: inbound, Body: numbered(inbound, n)})
				check(err)
				fmt.Printf("received %d %s %d\n", id, inbound, n)
			}
		}()
		go func() {
			for {
				m, err := s.NextReceived(ctx, inbound)
				check(err)
				if m == nil {
					continue
				}
				check(s.Route(ctx, m.ID, []store.Plan{{Handler: inbound, To: []string{"out"}}}, message.Outcome{State: message.RunSent}))
				next, err := s.NextRuns(ctx, inbound, 1, 0) // of the life before, perhaps
				check(err)
				r := next[0].Run
				sends := []message.Send{{To: "out", Body: next[0].On.Body}}
				check(s.EndRun(ctx, r.ID, message.Outcome{State: message.RunSent, Sends: sends}))
				fmt.Printf("ran %d\n", r.Message)
			}
		}()
	}
	for {
		heads, err := s.Heads(ctx, "out", 1)
		check(err)
		for _, d := range heads {
			if d.State == message.Ready {
				check(s.Delivered(ctx, d.ID, message.Receipt{}))
				fmt.Printf("delivered %d\n", d.Message)
			}
		}
	}
}

// numbered is the body of an inbound's nth message. The last inbound's are large.
func numbered(inbound string, n int) []byte {
	b := fmt.Append(nil, n)
	if inbound == "in3" {
		b = append(b, bytes.Repeat([]byte("."), 2*maxChunk+1000)...)
	}
	return b
}

func number(body []byte) string { return string(bytes.TrimRight(body, ".")) }

func childCount(s *Store, inbound string) (n int) {
	list, err := s.Messages(context.Background(), store.Query{Inbound: inbound, Limit: 1})
	if err == nil && len(list) == 1 {
		var tl store.Timeline
		tl, err = s.Timeline(context.Background(), list[0].ID)
		n, _ = strconv.Atoi(number(tl.Message.Body))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return n
}

// child is a running child, whose first line was read.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

func startChild(t *testing.T, name, path string) *child {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // what ends a child that hangs
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+name, childPathEnv+"="+path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{cmd, stdin, bufio.NewScanner(stdout)}
	if !c.lines.Scan() || c.lines.Text() != "open" {
		t.Fatalf("the child %q did not open the store: %q", name, c.lines.Text())
	}
	return c
}

// kill kills the child as kill -9 does, and returns what it had printed and nobody read.
func (c *child) kill(t *testing.T) []string {
	t.Helper()
	must(t, c.cmd.Process.Kill())
	var rest []string
	for c.lines.Scan() {
		rest = append(rest, c.lines.Text())
	}
	_ = c.cmd.Wait() // "signal: killed"
	return rest
}

// The lock names its owner, in whichever process, and ends with it. Red when Open does not acquire the lock: both then
// have the store.
func TestLockedByAnotherProcess(t *testing.T) {
	path := newPath(t)
	c := startChild(t, "hold", path)
	_, err := Open(t.Context(), path, Options{})
	wantLocked(t, err, "pid "+strconv.Itoa(c.cmd.Process.Pid))
	c.kill(t)
	s, err := Open(t.Context(), path, Options{})
	must(t, err)
	must(t, s.Close())

	c = startChild(t, "hold", path) // and a child that closes the store gives it up as well
	must(t, c.stdin.Close())
	must(t, c.cmd.Wait())
	openAt(t, path, Options{})
}

func wantLocked(t *testing.T, err error, owner string) {
	t.Helper()
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), owner) {
		t.Errorf("got error %v, want one that wraps ErrLocked and names %q", err, owner)
	}
}

// A process that is killed at any moment has on disk all that it said was committed, and nothing half done. Red when
// callers are answered before the COMMIT (the child itself then misses what it wrote), and when COMMIT is left out.
//
// Large bodies are there whole or not at all, and what was half stored is swept: red when beginBody does not note that a body
// is loose.
//
// (It cannot be red for synchronous=NORMAL: what a killed process wrote is with the kernel. That needs a power cut.)
func TestKilledWhileWriting(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	path := newPath(t)
	var said []string
	for range 4 {
		c := startChild(t, "write", path)
		for range 1 + rng.IntN(400) {
			if !c.lines.Scan() {
				t.Fatal("the child ended by itself")
			}
			said = append(said, c.lines.Text())
		}
		said = append(said, c.kill(t)...)
		s, err := Open(t.Context(), path, Options{}) // with the check, as nobody closed it
		must(t, err)
		checkSurvivors(t, s, said)
		if n := queryInt(t, s, "SELECT count(*) FROM pragma_quick_check WHERE quick_check <> 'ok'"); n != 0 {
			t.Errorf("quick_check reports %d problems", n)
		}
		must(t, s.Close())
	}
}

func checkSurvivors(t *testing.T, s *Store, said []string) {
	t.Helper()
	list, err := s.Messages(t.Context(), store.Query{Limit: 1 << 30})
	must(t, err)
	byID := map[message.ID]message.Message{}
	next := map[string]int{}
	for i := len(list) - 1; i >= 0; i-- { // oldest first: each inbound's messages in order, without a gap
		tl, err := s.Timeline(t.Context(), list[i].ID)
		must(t, err)
		m := tl.Message
		byID[m.ID] = m
		next[m.Inbound]++
		if !bytes.Equal(m.Body, numbered(m.Inbound, next[m.Inbound])) {
			t.Fatalf("message %d of %s is %q, want %d", m.ID, m.Inbound, number(m.Body), next[m.Inbound])
		}
		checkConsistent(t, tl)
	}
	for _, line := range said {
		var id message.ID
		var inbound, body string
		verb, rest, _ := strings.Cut(line, " ")
		_, _ = fmt.Sscan(rest, &id, &inbound, &body) // "ran" and "delivered" have the id alone
		m, ok := byID[id]
		switch {
		case !ok:
			t.Fatalf("%q was committed, but there is no such message", line)
		case verb == "received" && (m.Inbound != inbound || number(m.Body) != body):
			t.Errorf("%q was committed, but the message is %s %q", line, m.Inbound, number(m.Body))
		case verb == "ran" && m.Disposition == message.Received, verb == "delivered" && m.Disposition != message.Processed:
			t.Errorf("%q was committed, but the message is %s", line, m.Disposition)
		}
	}
	checkBodies(t, s, len(list), next["in3"])
}

// checkBodies checks that there are as many bodies as messages, and as many chunks as the large ones have, once the one that
// was under way is swept.
func checkBodies(t *testing.T, s *Store, messages, large int) {
	t.Helper()
	for more := true; more; {
		p, err := s.Purge(t.Context(), store.PurgeRequest{})
		must(t, err)
		more = p.More
	}
	bodies, chunks := queryInt(t, s, "SELECT count(*) FROM bodies"), queryInt(t, s, "SELECT count(*) FROM chunks")
	t.Logf("%d messages, %d of them large", messages, large)
	if bodies != messages || chunks != 3*large {
		t.Errorf("%d messages, %d of them large, have %d bodies and %d chunks", messages, large, bodies, chunks)
	}
}

// checkConsistent checks that a message stands where one of its hand-overs left it.
func checkConsistent(t *testing.T, tl store.Timeline) {
	t.Helper()
	got := string(tl.Message.Disposition)
	for _, r := range tl.Runs {
		got += " " + string(r.State)
	}
	for _, d := range tl.Deliveries {
		got += " " + string(d.State)
	}
	switch got {
	case "RECEIVED", "ROUTED PENDING RESERVED", "ROUTED SENT READY", "PROCESSED SENT DONE":
	default:
		t.Errorf("message %d is half done: %s", tl.Message.ID, got)
	}
}
