package engine

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

// patient is a receiver that answers no message before it is told to, and knows how many wait at once.
type patient struct {
	*mllp.Receiver
	goes chan struct{} // closed: it answers

	mu        sync.Mutex
	out, most int
	bodies    []string
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{goes: make(chan struct{})}
	r, err := mllp.NewReceiver("127.0.0.1:0", func(body []byte) string {
		goes := p.begin(body)
		<-goes
		p.mu.Lock()
		defer p.mu.Unlock()
		p.out--
		p.bodies = append(p.bodies, string(body))
		return hl7.AA
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Receiver = r
	t.Cleanup(func() {
		p.answer()
		r.Close()
	})
	return p
}

func (p *patient) begin(body []byte) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out++
	p.most = max(p.most, p.out)
	return p.goes
}

// answer answers all that wait, and all that come.
func (p *patient) answer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.goes:
	default:
		close(p.goes)
	}
}

func (p *patient) waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// TestUnordered: an outbound over MLLP that keeps no order has as many messages out as it may, each on a connection of its own, past one
// that waits for its handler; the lane says that it keeps none; a reload that changes that loses nothing and delivers nothing twice.
// Red without Parallel in pipelineConfig, and without it in outbound.
func TestUnordered(t *testing.T) {
	needPython(t)
	receiver := newPatient(t)
	strict := fmt.Sprintf(stampTOML, "127.0.0.1:0", receiver.Addr())
	none := strings.Replace(strict, "[outbound.emr]", "[outbound.emr]\norder = \"none\"\nparallel = 3", 1)
	dir := folder(t, none)
	write(t, filepath.Join(dir, "stamp.py"), stamp("0"))
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	for n := range 8 {
		exchange(t, client, numbered(n))
	}
	eventually(t, func() bool { return receiver.waiting() == 3 })
	lane := func() (waiting int64, unordered bool) {
		s, err := e.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range s.Lanes {
			if l.Target == (message.Target{Kind: message.KindOutbound, Name: "emr", Inbound: "feed"}) {
				return l.Waiting, l.Unordered
			}
		}
		return 0, false
	}
	eventually(t, func() bool { waiting, unordered := lane(); return waiting == 8 && unordered })
	go receiver.answer() // while the reload waits for what is out
	write(t, filepath.Join(dir, "coppice.toml"), strict)
	e.reload(t)
	for n := range 4 {
		exchange(t, client, numbered(8+n))
	}
	e.quiet(t, 12)
	if _, unordered := lane(); unordered {
		t.Error("in order again, the lane says that it keeps none")
	}
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	seen := map[string]bool{}
	for _, body := range receiver.bodies {
		seen[body] = true
	}
	if len(seen) != 12 || len(receiver.bodies) != 12 || receiver.most != 3 {
		t.Errorf("%d deliveries of %d messages, at most %d at once", len(receiver.bodies), len(seen), receiver.most)
	}
	last := receiver.bodies[len(receiver.bodies)-1]
	if !bytes.HasPrefix([]byte(last), numbered(11)) {
		t.Errorf("in order again, the last is %q", last)
	}
}
