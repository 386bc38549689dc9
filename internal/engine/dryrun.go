package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/sandbox"
)

// DryRun runs a configuration's code on messages that go nowhere: in the same workers, with the same limits, deadlines and
// settings, and judged by the same pipeline as in an engine. It has no store and no connections, and works in a temporary folder of
// its own, so it may run beside an engine. Make it with OpenDryRun, and Close it.
type DryRun struct {
	cfg      *config.Config
	tmp      string
	code     Snapshot
	workers  *workers
	pipeline *pipeline.Pipeline
	close    sync.Once
	closeErr error
}

// OpenDryRun takes a snapshot of the code and finds the programs that workers are; it starts none. Errors about the configuration
// are *config.Error, with a place in the file.
func OpenDryRun(ctx context.Context, cfg *config.Config, o sandbox.Observer) (_ *DryRun, err error) {
	d := &DryRun{cfg: cfg}
	if d.tmp, err = os.MkdirTemp("", "coppice-test-*"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.code, err = takeSnapshot(cfg, filepath.Join(d.tmp, "code"), ""); err != nil {
		return nil, err
	}
	d.workers, err = newWorkers(ctx, cfg, d.code, workerOptions{scratch: filepath.Join(d.tmp, "scratch"), sdk: filepath.Join(d.tmp, "sdk"), observer: o})
	if err != nil {
		return nil, err
	}
	e := &Engine{log: slog.New(slog.DiscardHandler)}
	d.pipeline = pipeline.New(e.pipelineConfig(&generation{cfg: cfg, workers: d.workers}))
	return d, nil
}

// RefusedError says that a message's inbound would not take it.
type RefusedError struct {
	Inbound string
	Reason  string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("inbound %s would turn it away: %s", e.Inbound, e.Reason)
}

// HeldError says that an engine would hold the message: a worker that it needs cannot be made ready, for a reason which is not
// the message's.
type HeldError struct{ Checked }

func (e *HeldError) Error() string { return e.Checked.Error.Error() }

// Unwrap returns the problem, with its place in the configuration.
func (e *HeldError) Unwrap() error { return e.Checked.Error }

// Run tries one message: its ID, Inbound, Received and Body are what the caller says; the rest is read from the body, as an
// inbound does. What would become of the message, ERROR included, is the Trial. An error says that nothing would: *RefusedError,
// *HeldError, or the cause of ctx. One message at a time.
func (d *DryRun) Run(ctx context.Context, m message.Message) (pipeline.Trial, error) {
	if err := d.admit(&m); err != nil {
		return pipeline.Trial{}, err
	}
	t, err := d.pipeline.Try(ctx, &m)
	if ctx.Err() != nil {
		return pipeline.Trial{}, context.Cause(ctx)
	}
	if boot, ok := errors.AsType[*sandbox.BootError](err); ok {
		return pipeline.Trial{}, d.held(boot)
	}
	if err != nil {
		return pipeline.Trial{}, err
	}
	for i := range t.Runs {
		d.relative(&t.Runs[i].Outcome)
	}
	t.Reason = d.shortened(t.Reason)
	return t, nil
}

// admit reads the header as the message's inbound does, and turns away what that does.
func (d *DryRun) admit(m *message.Message) error {
	i := slices.IndexFunc(d.cfg.Inbounds, func(in config.Inbound) bool { return in.Name == m.Inbound })
	if i < 0 {
		return fmt.Errorf("%s has no inbound %q", d.cfg.File, m.Inbound)
	}
	h, err := hl7.ParseHeader(m.Body)
	if err != nil && d.cfg.Inbounds[i].MLLP != nil {
		return &RefusedError{m.Inbound, err.Error()}
	}
	most := maxMessageOf(d.cfg, m.Inbound)
	if m.Size = int64(len(m.Body)); m.Size > most {
		return &RefusedError{m.Inbound, fmt.Sprintf("message is over the limit of %d bytes", most)}
	}
	parts, err := batchOf(d.cfg, m.Inbound, m.Body)
	if err != nil {
		return &RefusedError{m.Inbound, err.Error()}
	}
	if parts != nil {
		return fmt.Errorf("inbound %s takes this batch apart: each of its %d messages is one to try", m.Inbound, len(parts))
	}
	m.Type, m.ControlID = h.Type, h.ControlID
	return nil
}

// Parts takes a batch apart, as the inbound does that it comes by; none if the inbound takes it as one message, or not at all.
func (d *DryRun) Parts(inbound string, body []byte) [][]byte {
	parts, _ := batchOf(d.cfg, inbound, body) // Run says why
	return parts
}

// batchOf returns the messages of a batch, where its inbound takes one apart; none where the body is one message there.
func batchOf(cfg *config.Config, inbound string, body []byte) ([][]byte, error) {
	in := find(cfg.Inbounds, inbound, inboundName)
	if in == nil || in.Split != splitHL7 {
		return nil, nil
	}
	return hl7.Apart(body)
}

func (d *DryRun) held(boot *sandbox.BootError) error {
	for _, p := range d.workers.pools {
		if p.spec.Name == boot.Name {
			c := Checked{What: p.spec.Name}
			c.fails(d.cfg, p, d.code, boot)
			return &HeldError{c}
		}
	}
	return boot
}

// relative takes out of an outcome where the code lies for as long as the dry run lasts.
func (d *DryRun) relative(out *message.Outcome) {
	out.Reason = d.shortened(out.Reason)
	if f := out.Fault; f != nil {
		f.Text, f.Traceback = d.shortened(f.Text), d.shortened(f.Traceback)
	}
}

func (d *DryRun) shortened(s string) string {
	return strings.ReplaceAll(s, d.code.Dir+string(filepath.Separator), "")
}

// Close ends the workers and removes the folder. It may be called again.
func (d *DryRun) Close() error {
	d.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		if d.workers != nil {
			d.closeErr = d.workers.close(ctx)
		}
		d.closeErr = errors.Join(d.closeErr, confine.Clear(d.tmp))
	})
	return d.closeErr
}
