package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/worker"
)

// The world in which engines crash: three inbounds, four handlers, one of which is hostile, and four outbounds, of which one is
// down half of the time. The functions are Go, in this program executed again, so that an engine that lives for a moment does
// something in it.
const worldTOML = `
version = 1
[inbound.adt]
mllp = { listen = "127.0.0.1:0" }
handlers = ["copy"]
[inbound.lab]
mllp = { listen = "127.0.0.1:0" }
handlers = ["split", "hostile"]
[inbound.orm]
mllp = { listen = "127.0.0.1:0" }
router = { command = [%[1]q, "worker"], name = "route" }

[handler.copy]
command = [%[1]q, "worker"]
to = ["emr", "archive"]
[handler.split]
command = [%[1]q, "worker"]
to = ["emr", "audit"]
[handler.late]
command = [%[1]q, "worker"]
to = ["slow", "emr"]
[handler.hostile]
command = [%[1]q, "worker"]
to = ["audit", "slow"]
deadline = "300ms"
hold_after = 0

[outbound.emr]
mllp = { connect = %[2]q }
retry = { first = "10ms", max = "100ms" }
[outbound.audit]
mllp = { connect = %[3]q }
retry = { first = "10ms", max = "100ms" }
[outbound.slow]
mllp = { connect = %[4]q }
retry = { first = "10ms", max = "100ms" }
[outbound.archive]
file = { dir = "archive" }
`

// part is one delivery that a message is to cause.
type part struct {
	outbound, handler string
	k                 int // 0, or 1 for a second send of the handler to the outbound
}

// destiny is what is to become of message number n of an inbound, in the order in which its places are reserved. The handlers
// do it, and the books are held against it.
func destiny(inbound string, n int) (parts []part, end message.Disposition) {
	switch inbound {
	case "adt":
		return []part{{"emr", "copy", 0}, {"archive", "copy", 0}}, message.Processed
	case "lab":
		end = message.Filtered
		if n%3 != 0 {
			end = message.Processed
			parts = append(parts, part{"emr", "split", 0})
			if n%5 == 0 {
				parts = append(parts, part{"audit", "split", 0}, part{"audit", "split", 1})
			}
		}
		if evil(n) != "" {
			return parts, message.Error
		}
		if n%9 == 0 {
			return parts, end
		}
		return append(parts, part{"audit", "hostile", 0}), message.Processed
	}
	if n%4 == 0 {
		return nil, message.Unrouted
	}
	parts = append(parts, part{"slow", "late", 0})
	if n%2 == 0 {
		parts = append(parts, part{"emr", "late", 0})
	}
	return append(parts, part{"emr", "copy", 0}, part{"archive", "copy", 0}), message.Processed
}

// evil is what the hostile handler does about message number n.
func evil(n int) string {
	switch {
	case n%12 == 3:
		return "exits"
	case n%12 == 5:
		return "raises"
	case n%60 == 7:
		return "loops"
	case n%60 == 11:
		return "leaves an escapee that holds the wire"
	}
	return ""
}

func numberedMessage(n int) []byte {
	return fmt.Appendf(nil, "MSH|^~\\&|A|B|C|D|20260101||ADT^A01|N%06d|P|2.5\rPID|1||%d\r", n, n)
}

func numberOf(control string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(control, "N"))
	if err != nil {
		panic(err)
	}
	return n
}

// runWorker is the far side.
func runWorker() {
	functions := []worker.Function{worker.Router("route", func(_ context.Context, m *worker.Message) ([]string, error) {
		if numberOf(m.ControlID)%4 == 0 {
			return nil, nil
		}
		return []string{"late", "copy"}, nil
	})}
	for _, name := range []string{"copy", "split", "late", "hostile"} {
		functions = append(functions, worker.Handler(name, func(ctx context.Context, m *worker.Message) (worker.Result, error) {
			n := numberOf(m.ControlID)
			switch name {
			case "late":
				time.Sleep(time.Duration(n%7) * time.Millisecond)
			case "hostile":
				if err := doEvil(evil(n)); err != nil {
					return worker.Nothing, err
				}
			}
			var sends []worker.Result
			parts, _ := destiny(m.Inbound, n)
			for _, p := range parts {
				if p.handler == name {
					sends = append(sends, worker.Send(p.outbound, fmt.Appendf(nil, "%sZID|%d|%s|%s|%s|%d\r", m.Body, m.ID, m.Inbound, p.handler, p.outbound, p.k)))
				}
			}
			if len(sends) == 0 {
				return worker.Drop("not for us"), nil
			}
			return worker.Sends(sends...), nil
		}))
	}
	worker.Main(functions...)
}

func doEvil(what string) error {
	switch what {
	case "exits":
		os.Exit(3)
	case "raises":
		return errors.New("it raised")
	case "loops":
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		}
	case "leaves an escapee that holds the wire":
		cmd := exec.Command("/bin/sleep", "20")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.ExtraFiles = []*os.File{os.NewFile(3, ""), os.NewFile(4, "")}
		cmd.Start() // an error leaves none
		os.Exit(4)
	}
	return nil
}

// arrival is one delivery as a receiver has it.
type arrival struct {
	id       message.ID
	inbound  string
	outbound string
	part
}

func parseArrival(body []byte) (a arrival, err error) {
	_, tail, ok := bytes.Cut(body, []byte("ZID|"))
	f := strings.Split(strings.TrimSpace(string(tail)), "|")
	if !ok || len(f) != 5 {
		return a, fmt.Errorf("%q is no delivery of these handlers", body)
	}
	id, err := strconv.ParseInt(f[0], 10, 64)
	k, err2 := strconv.Atoi(f[4])
	a = arrival{id: message.ID(id), inbound: f[1], outbound: f[3], part: part{f[3], f[2], k}}
	return a, errors.Join(err, err2)
}

// receiverOf keeps all that arrives at one outbound, in order.
type receiverOf struct {
	*mllp.Receiver
	mu       sync.Mutex
	down     func() bool
	arrivals []arrival
	bad      []string
}

func newReceiverOf(down func() bool) (*receiverOf, error) {
	r := &receiverOf{down: down}
	var err error
	r.Receiver, err = mllp.NewReceiver("127.0.0.1:0", func(body []byte) string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.down() {
			return mllp.HangUp // and has not got it
		}
		a, err := parseArrival(body)
		if err != nil {
			r.bad = append(r.bad, err.Error())
		}
		r.arrivals = append(r.arrivals, a)
		return hl7.AA
	})
	return r, err
}

func (r *receiverOf) got() ([]arrival, []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.arrivals), slices.Clone(r.bad)
}
