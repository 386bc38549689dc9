package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/engine"
)

// TestStatuses: which errors end the program how, and what it says. The last cases are of programs that a signal ended.
func TestStatuses(t *testing.T) {
	sig := &signalError{syscall.SIGTERM}
	for _, c := range []struct {
		name   string
		err    error
		ended  bool
		status int
		says   string
	}{
		{"all is well", nil, false, exitOK, ""},
		{"a problem", errors.New("no store\n  hint: look"), false, exitProblem, "coppice: no store\n  hint: look\n"},
		{"a problem that was told", told(), false, exitProblem, ""},
		{"wrong usage", usage("give one"), false, exitUsage, "coppice: give one\ntry: coppice demo --help\n"},
		{"an error that a worker wrote", errors.New("\x1b[31m"), false, exitProblem, "coppice: \\x1b[31m\n"},
		{"meant to be ended", nil, true, exitOK, ""},
		{"ended", sig, true, 143, "coppice: ended by terminated\n"},
		{"ended in the middle", fmt.Errorf("file 3: %w", sig), true, 143, "coppice: file 3: ended by terminated\n"},
		{"cancelled", fmt.Errorf("read: %w", context.Canceled), true, 143, "coppice: ended by terminated\n"},
		// Seen red when a signal hid every error.
		{"ended, and something else is wrong", errors.New("disk full"), true, 143, "coppice: disk full\n  ended by terminated\n"},
		{"ended as it should be, and badly", &statusError{code: exitProblem, err: errors.New("a worker is left")}, true, exitProblem, "coppice: a worker is left\n"},
		{"cancelled by nobody", context.Canceled, false, exitProblem, "coppice: context canceled\n"},
	} {
		var said bytes.Buffer
		streams := stdio{out: io.Discard, err: &said}
		root := rootCommand(streams)
		ctx, end := context.WithCancelCause(t.Context())
		for _, cmd := range root.Commands() {
			if cmd.Name() == "demo" {
				verb(cmd, func(*cobra.Command, []string) error {
					if c.ended {
						end(sig)
					}
					return c.err
				})
			}
		}
		if got := execute(ctx, root, []string{"demo"}, streams); got != c.status || said.String() != c.says {
			t.Errorf("%s: status %d, says %q; to be %d, %q", c.name, got, said.String(), c.status, c.says)
		}
		end(nil)
	}
}

// TestServeToldBefore: a signal that comes before the engine serves is a stop like any other. Seen red without the case in
// serve.
func TestServeToldBefore(t *testing.T) {
	dir := t.TempDir()
	toml := "version = 1\n[inbound.a]\nmllp = { listen = \"127.0.0.1:0\" }\nhandlers = [\"b\"]\n[handler.b]\ncommand = [\"true\"]\nto = []\n"
	if err := os.WriteFile(filepath.Join(dir, config.FileName), []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&signalError{syscall.SIGTERM})
	var log strings.Builder
	if err := serve(ctx, stdio{}, cfg, engine.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "stopped before it served") {
		t.Errorf("log: %s", log.String())
	}
}

func TestDialable(t *testing.T) {
	for listen, want := range map[string]string{
		":6661": "127.0.0.1:6661", "0.0.0.0:6661": "127.0.0.1:6661", "[::]:6661": "[::1]:6661", "10.0.0.1:6661": "10.0.0.1:6661",
		"hub.example.org:6661": "hub.example.org:6661", "[fe80::1]:1": "[fe80::1]:1",
	} {
		if got := dialable(&config.MLLPIn{Listen: listen}); got != want {
			t.Errorf("%s can be reached at %s, not %s", listen, want, got)
		}
	}
}
