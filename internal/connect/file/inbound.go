package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/room"
)

// Defaults for what a configuration leaves zero.
const (
	DefaultPattern    = "*"
	DefaultPoll       = 5 * time.Second
	DefaultStable     = time.Second
	DefaultMaxMessage = 16 << 20  // bytes
	DefaultRoom       = 512 << 20 // bytes, of an inbound that shares with none
)

// errorFolder takes the files that were refused, inside of the inbound's folder.
const errorFolder = "error"

// After says what happens to a file once it is committed.
type After string

// What can happen to a file.
const (
	Delete After = "delete" // the default
	Move   After = "move"   // into MoveTo
)

// How a stop is spread over connect.StopWithin.
const (
	stopCommit = 1000 * time.Millisecond
	stopReport = 1800 * time.Millisecond
)

// eventPause gathers the many events of one written file into one look, and bounds how often a busy folder is read.
const eventPause = 50 * time.Millisecond

// InboundConfig says which files to take. Zero values mean the defaults.
type InboundConfig struct {
	Name       string
	Dir        string
	Pattern    string        // of names, as in path.Match
	Poll       time.Duration // between two looks where no event comes: network file systems send none
	Stable     time.Duration // a file is read once size and time stood still for this long
	MaxMessage int64         // bytes of one file
	Split      bool          // a batch is its messages, and not one
	After      After
	// MoveTo is the folder for committed files, made where it is missing; it lies in the same file system. A relative
	// one lies inside of Dir.
	MoveTo string
	Room   *room.Room // for bodies, shared with others; nil: one of its own
	Log    *slog.Logger
}

// Inbound takes files from one folder. Those that are quiet at one look are taken in the order of their names; a file
// that still grows waits without holding up the others. It does not take: folders, symbolic links and other special
// files, names that begin with a dot or end in .tmp or .part. A sender does best to write under such a name and rename.
type Inbound struct {
	cfg    InboundConfig
	sink   connect.Sink
	listen bool
	seen   map[string]sighting
	doubt  map[string]bool // see doubtful; nil before the first survey
}

// sighting is what the last look saw of one file.
type sighting struct {
	size  int64
	mtime time.Time
	since time.Time // end of the survey that first saw it like this; monotonic
	done  bool      // committed or refused, but it could not be moved away
	label string    // with done: what to add to the name where the target is taken
	bad   bool      // with done: refused
	noted bool      // the log says already that it cannot be read
}

// NewInbound checks the configuration; it does not touch the folder.
func NewInbound(cfg InboundConfig, sink connect.Sink) (*Inbound, error) {
	if err := cfg.fill(); err != nil {
		return nil, fmt.Errorf("file inbound %s: %w", cfg.Name, err)
	}
	return &Inbound{cfg: cfg, sink: sink, seen: map[string]sighting{}}, nil
}

func (cfg *InboundConfig) fill() (err error) {
	if cfg.Dir == "" {
		return errors.New("no dir")
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return err
	}
	if cfg.Pattern == "" {
		cfg.Pattern = DefaultPattern
	}
	if _, err := path.Match(cfg.Pattern, ""); err != nil {
		return fmt.Errorf("pattern %q: %w", cfg.Pattern, err)
	}
	if cfg.Poll <= 0 {
		cfg.Poll = DefaultPoll
	}
	if cfg.Stable <= 0 {
		cfg.Stable = DefaultStable
	}
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = DefaultMaxMessage
	}
	if cfg.Room == nil {
		cfg.Room = room.New(DefaultRoom, cfg.MaxMessage, nil)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("inbound", cfg.Name)
	return cfg.fillAfter()
}

func (cfg *InboundConfig) fillAfter() error {
	switch {
	case cfg.After == "" && cfg.MoveTo != "":
		cfg.After = Move
	case cfg.After == "":
		cfg.After = Delete
	}
	switch {
	case cfg.After != Delete && cfg.After != Move:
		return fmt.Errorf("after %q is neither delete nor move", cfg.After)
	case cfg.After == Move && cfg.MoveTo == "":
		return errors.New("after = \"move\" needs a folder to move to")
	case cfg.After == Delete && cfg.MoveTo != "":
		return errors.New("a folder to move to, but after = \"delete\"")
	case cfg.MoveTo == "":
		return nil
	}
	if !filepath.IsAbs(cfg.MoveTo) {
		if !filepath.IsLocal(cfg.MoveTo) || filepath.Clean(cfg.MoveTo) == "." {
			return fmt.Errorf("folder to move to: %q is not inside of %s", cfg.MoveTo, cfg.Dir)
		}
		cfg.MoveTo = filepath.Join(cfg.Dir, cfg.MoveTo)
	}
	if cfg.MoveTo = filepath.Clean(cfg.MoveTo); cfg.MoveTo == cfg.Dir {
		return errors.New("folder to move to is the folder itself")
	}
	return nil
}

// Listen checks that the folder can be read, and that a file in it can be moved to where committed files go.
func (in *Inbound) Listen(context.Context) error {
	if err := in.probe(); err != nil {
		return fmt.Errorf("file inbound %s: %w", in.cfg.Name, err)
	}
	in.listen = true
	return nil
}

// probe does with a file of its own what will be done with others': folders on two file systems would fail only after
// the first commit otherwise.
func (in *Inbound) probe() error {
	if _, err := os.ReadDir(in.cfg.Dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(in.cfg.Dir, ".coppice-probe-*.tmp")
	if err != nil {
		return fmt.Errorf("files cannot be taken away: %w", err)
	}
	at := f.Name()
	if err := f.Close(); err != nil {
		return errors.Join(err, os.Remove(at))
	}
	if in.cfg.After == Move {
		if err := makeFolder(in.cfg.MoveTo); err != nil {
			return errors.Join(err, os.Remove(at))
		}
		to := filepath.Join(in.cfg.MoveTo, filepath.Base(at))
		if err := os.Rename(at, to); err != nil {
			return errors.Join(fmt.Errorf("move to %s: %w", in.cfg.MoveTo, err), os.Remove(at))
		}
		at = to
	}
	return os.Remove(at)
}

// Addr is the folder's absolute path.
func (in *Inbound) Addr() string { return in.cfg.Dir }

// Serve takes files until ctx is done; see connect.Inbound. Its error after that tells of a sink, or of a file system,
// that did not let go.
func (in *Inbound) Serve(ctx context.Context) error {
	if !in.listen {
		return fmt.Errorf("file inbound %s: %w", in.cfg.Name, connect.ErrNotListening)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.loop(ctx)
	}()
	<-ctx.Done()
	select {
	case <-done:
		return nil
	case <-time.After(stopReport):
		return fmt.Errorf("file inbound %s: stop: a commit or the file system did not end in time", in.cfg.Name)
	}
}

// loop looks at the folder at every event, at every poll, and when a file may have become quiet.
func (in *Inbound) loop(ctx context.Context) {
	commit, cancel := connect.Grace(ctx, stopCommit)
	defer cancel()
	w := newWatch(in.cfg.Dir, in.cfg.Log)
	defer w.close()
	var last error
	for ctx.Err() == nil {
		w.renew()
		wait, err := in.look(ctx, commit)
		if err != nil && (last == nil || last.Error() != err.Error()) {
			in.cfg.Log.Warn("folder not taken from", "error", err, "again", in.cfg.Poll)
		}
		last = err
		w.wait(ctx, wait)
	}
}

// watch tells of changes in a folder as far as the system does; polling makes up for the rest.
type watch struct {
	dir     string
	log     *slog.Logger
	events  *fsnotify.Watcher // nil where the system gives none
	watched os.FileInfo       // the folder that is being watched, which may have been replaced since
}

func newWatch(dir string, log *slog.Logger) *watch {
	w := &watch{dir: dir, log: log}
	var err error
	if w.events, err = fsnotify.NewWatcher(); err != nil {
		log.Warn("folder is polled, not watched", "error", err)
		w.events = nil
	}
	return w
}

// renew watches the folder that stands under the path now.
func (w *watch) renew() {
	if w.events == nil {
		return
	}
	info, err := os.Stat(w.dir)
	if err != nil {
		return // the look says so
	}
	if w.watched != nil && os.SameFile(w.watched, info) {
		return
	}
	if w.watched != nil {
		_ = w.events.Remove(w.dir) // of the folder that is gone
	}
	if err := w.events.Add(w.dir); err != nil {
		w.log.Warn("folder is polled, not watched", "error", err)
	}
	w.watched = info // also after an error: said once for each folder
}

// wait returns after d, a little after an event, or when ctx is done.
func (w *watch) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var events chan fsnotify.Event
	var errs chan error
	if w.events != nil {
		events, errs = w.events.Events, w.events.Errors
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-events: // which file it was, the look will see
			events = nil // later ones wait in the queue, and bring one more look at most
			timer.Reset(min(d, eventPause))
		case <-errs: // lost events: look
			errs = nil
			timer.Reset(min(d, eventPause))
		}
	}
}

func (w *watch) close() {
	if w.events != nil {
		_ = w.events.Close() // always nil
	}
}
