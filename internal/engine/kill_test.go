package engine

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const numberedTOML = `
version = 1
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
handlers = ["numbered"]
[handler.numbered]
run = "feed.py:numbered"
to = ["emr"]
[outbound.emr]
mllp = { connect = %q }
retry = { first = "10ms", max = "100ms" }
`

// childEngine is an engine in a process of its own, to be killed.
type childEngine struct {
	cmd  *exec.Cmd
	addr string
}

func startChild(t *testing.T, dir string) *childEngine {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &childEngine{cmd: exec.Command(exe, "engine", dir)}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("engine did not start: %v", err)
	}
	c.addr = strings.TrimSpace(line)
	return c
}

func (c *childEngine) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// TestKill kills the engine with -9 at random moments while messages pass, and starts it again; the receiver hangs up on
// each twentieth. None is lost, what arrives keeps the order of receipt, and what arrives twice is only the one delivery
// that was in progress at a kill.
//
// Seen red with a delivery recorded before it is sent (lost), with a message acknowledged before it is committed (lost), and
// with a lane read from its newest place (order).
func TestKill(t *testing.T) {
	needPython(t)
	kills := 4
	if n, err := strconv.Atoi(os.Getenv("COPPICE_KILLS")); err == nil {
		kills = n
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("COPPICE_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("COPPICE_SEED=%d COPPICE_KILLS=%d", seed, kills)
	r := rand.New(rand.NewPCG(seed, 0))
	moods := rand.New(rand.NewPCG(seed, 1))
	receiver := newEMR(t, func() bool { return moods.IntN(20) == 0 })
	dir := folder(t, fmt.Sprintf(numberedTOML, receiver.Addr()))

	sent := 0
	for range kills {
		child := startChild(t, dir)
		life := time.Duration(50+r.IntN(1500)) * time.Millisecond
		dead := make(chan struct{})
		go func() {
			time.Sleep(life) // the random moment is the point
			child.kill()
			close(dead)
		}()
		sent = feed(t, child.addr, sent, dead)
		<-dead
	}
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	for range 20 {
		exchange(t, client, numberedMessage(sent))
		sent++
	}
	e.quiet(t, int64(sent))
	checkArrivals(t, e, receiver.got(), sent, kills)
}

func numberedMessage(n int) []byte {
	return fmt.Appendf(nil, "MSH|^~\\&|A|B|C|D|20260101||ADT^A01|N%06d|P|2.5\rPID|1||%d\r", n, n)
}

// feed sends messages from number n on until the engine dies, and returns the number of the first one that was not
// acknowledged: it is sent again, as a sender does.
func feed(t *testing.T, addr string, n int, dead <-chan struct{}) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := mllp.Dial(ctx, addr)
	if err != nil {
		return n // killed before that
	}
	defer client.Close()
	for {
		select {
		case <-dead:
			return n
		default:
		}
		ack, err := client.Exchange(ctx, numberedMessage(n))
		if err != nil {
			return n
		}
		if ack.Code != hl7.AA {
			t.Fatalf("answered with %s", ack.Code)
		}
		n++
	}
}

// checkArrivals holds what the receiver has against what was acknowledged, and against the engine's books.
func checkArrivals(t *testing.T, e *served, bodies [][]byte, sent, kills int) {
	t.Helper()
	list, err := e.Store().Messages(t.Context(), store.Query{Limit: 10 * (sent + kills)})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if m.Disposition != message.Processed {
			t.Errorf("message %d is %s: %s", m.ID, m.Disposition, m.Reason)
		}
	}
	var last, repeats int
	control := map[string]bool{}
	for _, b := range bodies {
		h, err := hl7.ParseHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		control[h.ControlID] = true
		_, tail, _ := bytes.Cut(b, []byte("ZID|"))
		id, err := strconv.Atoi(strings.TrimSpace(string(tail)))
		switch {
		case err != nil:
			t.Fatalf("%q: %v", b, err)
		case id == last+1:
			last = id
		case id == last:
			repeats++
		default:
			t.Errorf("message %d arrived behind message %d", id, last)
			last = id
		}
	}
	if last != len(list) {
		t.Errorf("%d messages arrived, the engine has %d", last, len(list))
	}
	for n := range sent {
		if !control[fmt.Sprintf("N%06d", n)] {
			t.Errorf("message N%06d was acknowledged and never arrived", n)
		}
	}
	if repeats > kills || len(list) > sent+kills {
		t.Errorf("%d repeats and %d messages of %d, in %d kills", repeats, len(list), sent, kills)
	}
	t.Logf("%d sent, %d received by the engine, %d arrived, %d of them repeats", sent, len(list), len(bodies), repeats)
}
