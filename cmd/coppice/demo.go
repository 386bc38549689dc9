package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/tree"
)

const (
	demoTimeout = 90 * time.Second // for everything; it takes a few seconds
	demoSeed    = 1
)

func demoCommand(io stdio) *cobra.Command {
	d := &demo{io: io}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job with data of its own: 40 messages, one hostile handler",
		Long: `Demo makes up 40 HL7 messages, starts an engine on a SQLite file in a temporary folder, and sends them through a router and
three handlers in worker processes: one transforms, one filters, and one turns hostile on some messages: it spins, crashes, or
leaves a process behind that has escaped into sessions of its own, holds the response pipe and hangs.

It exits with 0 only if each message has the one disposition that it should have, its deliveries arrived once and in order,
and nothing that it started is left running. The folder stays, for looking; delete it when you have seen enough.`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&d.dir, "dir", "", "use the folder `DIR`, empty or to be made, instead of a temporary one")
	_ = cmd.MarkFlagDirname("dir") // an error only for a flag that is not there
	f.Uint64Var(&d.seed, "seed", demoSeed, "make other data from `N`")
	f.BoolVar(&d.keep, "keep", false, "go on serving until Ctrl-C")
	f.BoolVar(&d.asJSON, "json", false, "print one JSON object a line: what happens, then the sum")
	return verb(cmd, func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) })
}

// demo is one demonstration.
type demo struct {
	io     stdio
	dir    string
	seed   uint64
	keep   bool
	asJSON bool

	level    tree.Level // the least that any worker got
	cases    []demoCase
	receiver *mllp.Receiver
	engine   *engine.Engine
	began    time.Time

	mu       sync.Mutex
	bar      *progressbar.ProgressBar
	arrived  []string // control ids at the receiver, in order
	started  int      // workers
	cuts     []sandbox.Cut
	unproved int // workers that were not proved gone
}

const demoConfig = `# Written by coppice demo: its handlers are the program itself, executed again as a worker.
version = 1

[store]
path = "var/coppice.db"

[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
router = { command = [%[1]q, "demo-worker"], name = "route" }

[handler.admit]
command = [%[1]q, "demo-worker"]
to = ["emr", "archive"]
settings = { facility = "WOOD" }

[handler.results]
command = [%[1]q, "demo-worker"]
to = ["emr", "archive"]

[handler.agenda]
command = [%[1]q, "demo-worker"]
to = ["archive"]
deadline = "1s"

[outbound.emr]
mllp = { connect = %[2]q }

[outbound.archive]
file = { dir = "out/archive", name = "{id}.hl7" }
`

func (d *demo) run(ctx context.Context) error {
	outliveReaders()
	d.began = time.Now()
	bounded, cancel := context.WithTimeoutCause(ctx, demoTimeout, fmt.Errorf("the demonstration took longer than %v", demoTimeout))
	defer cancel()
	cfg, err := d.prepare(bounded)
	if d.receiver != nil {
		defer d.receiver.Close()
	}
	if err != nil {
		return err
	}
	// The engine outlives the deadline of the demonstration's own work, and with --keep all of it.
	running, stop := context.WithCancel(ctx)
	defer stop()
	d.engine, err = engine.Open(bounded, cfg, engine.Options{
		Pipeline: pipeline.Observer{Ran: d.onRun, Sent: d.onSent},
		Sandbox:  sandbox.Observer{Started: d.onStarted, Cut: d.onCut},
	})
	if err != nil {
		return tellOpen(d.io, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.engine.Run(running) }()
	books, err := d.work(bounded)
	d.endBar()
	var faults []string
	if err == nil && d.keep {
		// The books are of the demonstration's own messages: whoever sends more from now on reads those elsewhere.
		faults = d.report(books, "the engine goes on", nil)
		d.say("\nserving: MLLP at %s; Ctrl-C ends it\n", d.engine.Addr("feed"))
		<-ctx.Done()
	}
	stop()
	stopped := <-ended
	switch {
	case err != nil:
		return errors.Join(err, stopped)
	case !d.keep:
		return d.close(books, stopped)
	}
	left, still := d.left(stopped)
	d.say("stopped; %s\n", left)
	return unaccounted(append(faults, still...))
}

// prepare makes the folder, the receiver and the messages, and proves the wiring.
func (d *demo) prepare(ctx context.Context) (*config.Config, error) {
	var err error
	if d.dir, err = demoFolder(d.dir); err != nil {
		return nil, err
	}
	if d.receiver, err = mllp.NewReceiver("127.0.0.1:0", d.receive); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	toml := fmt.Sprintf(demoConfig, exe, d.receiver.Addr())
	if err := writeNew(filepath.Join(d.dir, "coppice.toml"), []byte(toml)); err != nil {
		return nil, err
	}
	cfg, err := loadConfig(d.io, d.dir)
	if err != nil {
		return nil, err
	}
	var bad error
	err = engine.Check(ctx, cfg, func(c engine.Checked) {
		if c.Error != nil {
			bad = errors.Join(bad, c.Error)
		} else if d.level == 0 || c.Level < d.level {
			d.level = c.Level
		}
	}, nil)
	if err = errors.Join(err, bad); err != nil {
		return nil, err
	}
	d.cases = demoCases(d.seed, d.level >= tree.Tracked)
	d.say("folder   %s\nlevel    %s: %s\n", d.dir, d.level, levelMeaning(d.level))
	if d.level < tree.Tracked {
		d.say("         this host gives no more, so the demonstration leaves out the victim that escapes\n")
	}
	d.event("ready", map[string]any{"dir": d.dir, "level": d.level, "escape": d.level >= tree.Tracked})
	return cfg, nil
}

func demoFolder(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "coppice-demo-*")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("%s is not empty: name another folder", dir)
	}
	return filepath.Abs(dir)
}

func levelMeaning(l tree.Level) string {
	switch l {
	case tree.Atomic:
		return "the kernel kills a worker's whole tree at once"
	case tree.Tracked:
		return "orphans come back to their tree, which is killed in a loop"
	case tree.Group:
		return "a worker's process group is killed; what leaves it escapes"
	}
	return "only a worker's own process is killed"
}

// work sends the messages, waits for the end of the last one, and reads the books.
func (d *demo) work(ctx context.Context) ([]store.Timeline, error) {
	if d.asJSON || !terminal(d.io.err) {
		d.say("sending  %d messages\n", len(d.cases))
	} else {
		d.bar = progressbar.NewOptions(len(d.cases), progressbar.OptionSetWriter(d.io.err), progressbar.OptionShowCount(),
			progressbar.OptionSetDescription("messages done"), progressbar.OptionClearOnFinish())
	}
	client, err := mllp.Dial(ctx, d.engine.Addr("feed"))
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	defer client.Close()
	for _, c := range d.cases {
		ack, err := client.Exchange(ctx, c.Body)
		if err != nil {
			return nil, causeOf(ctx, err)
		}
		if ack.Code != hl7.AA {
			return nil, fmt.Errorf("message %s was answered with %s", c.Control, ack.Code)
		}
	}
	return d.await(ctx)
}

// await waits until nothing is under way, and returns what the store then has, in receive order.
func (d *demo) await(ctx context.Context) ([]store.Timeline, error) {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		counts, err := d.engine.Store().Counts(ctx)
		if err != nil {
			return nil, causeOf(ctx, err)
		}
		d.onProgress(counts)
		if counts[message.Received]+counts[message.Routed] == 0 {
			break
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	list, err := d.engine.Store().Messages(ctx, store.Query{Limit: 10 * len(d.cases)})
	if err != nil {
		return nil, err
	}
	books := make([]store.Timeline, len(list))
	for i, m := range list { // newest first
		if books[len(list)-1-i], err = d.engine.Store().Timeline(ctx, m.ID); err != nil {
			return nil, err
		}
	}
	return books, nil
}

// receive is the demonstration's EMR.
func (d *demo) receive(body []byte) string {
	h, err := hl7.ParseHeader(body)
	if err != nil {
		return hl7.AR
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arrived = append(d.arrived, h.ControlID)
	return hl7.AA
}

// self is how to call this program again, for people to copy.
func self() string {
	exe, err := os.Executable()
	if err != nil || strings.Contains(filepath.ToSlash(exe), "/go-build") {
		return "go run ./cmd/coppice"
	}
	if found, err := exec.LookPath("coppice"); err == nil && sameFile(found, exe) {
		return "coppice"
	}
	short := shortPath(exe)
	if !strings.ContainsRune(short, filepath.Separator) {
		short = "." + string(filepath.Separator) + short // a bare name would be looked up
	}
	return shellWord(short)
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
