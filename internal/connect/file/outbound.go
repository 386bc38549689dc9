package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/message"
)

// writeChunk is written between two looks at the context, in bytes.
const writeChunk = 1 << 20

// OutboundConfig says where deliveries go.
type OutboundConfig struct {
	Name string
	Dir  string // made with mode 0700 where it is missing
	// NameTemplate names a file: literals with {id}, and {message}, {inbound}, {handler}, {type} and {control_id}. Empty
	// means "{id}".
	NameTemplate string
	Log          *slog.Logger
}

// Outbound writes each delivery into a file of its own. It is safe for concurrent use.
type Outbound struct {
	cfg    OutboundConfig
	names  template
	closed atomic.Bool
}

// NewOutbound checks the configuration; it does not touch the folder.
func NewOutbound(cfg OutboundConfig) (*Outbound, error) {
	if cfg.NameTemplate == "" {
		cfg.NameTemplate = "{id}"
	}
	names, err := parseTemplate(cfg.NameTemplate)
	if err != nil {
		return nil, fmt.Errorf("file outbound %s: %w", cfg.Name, err)
	}
	if cfg.Dir == "" {
		return nil, fmt.Errorf("file outbound %s: no dir", cfg.Name)
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("file outbound %s: %w", cfg.Name, err)
	}
	return &Outbound{cfg: cfg, names: names}, nil
}

// Send writes d and returns once the file and its name are on disk; the receipt is its path. A file of the same name is
// replaced: it can only be the same delivery's. No error of a file system is a rejection: all are worth another try. ctx
// is looked at between pieces of a megabyte; a call that a dead disk holds is not interrupted.
func (o *Outbound) Send(ctx context.Context, d message.Delivery) (message.Receipt, error) {
	name := o.names.name(d)
	if err := o.send(ctx, name, d); err != nil {
		return message.Receipt{}, fmt.Errorf("file outbound %s: %w", o.cfg.Name, err)
	}
	return message.Receipt{Text: filepath.Join(o.cfg.Dir, name)}, nil
}

func (o *Outbound) send(ctx context.Context, name string, d message.Delivery) error {
	if o.closed.Load() {
		return connect.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := makeFolder(o.cfg.Dir); err != nil {
		return err
	}
	root, err := os.OpenRoot(o.cfg.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	temporary := "." + d.Name() + ".part"
	if err := write(ctx, root, temporary, d.Body); err != nil {
		return errors.Join(err, remove(root, temporary))
	}
	if err := root.Rename(temporary, name); err != nil {
		return errors.Join(err, remove(root, temporary))
	}
	return syncFolder(root)
}

// write makes a new file with this content, and makes it durable. What a crash left under the name, or a stranger
// planted there, is removed first and never written through.
func write(ctx context.Context, root *os.Root, name string, body []byte) (err error) {
	if err := remove(root, name); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for in := bytes.NewReader(body); in.Len() > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := io.CopyN(f, in, min(writeChunk, int64(in.Len()))); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return ctx.Err()
}

func remove(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close makes later sends fail with connect.ErrClosed; sends in progress end by themselves.
func (o *Outbound) Close() error {
	o.closed.Store(true)
	return nil
}
