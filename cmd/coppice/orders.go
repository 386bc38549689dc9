package main

import (
	"context"
	"errors"
	"fmt"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/store"
)

// reach finds who carries out commands on a folder's store: the engine that runs there, or, while none does, this program
// itself. Call the function that it returns at the end.
func reach(ctx context.Context, io stdio, dir string) (control.Commands, *config.Config, func(), error) {
	cfg, err := locate(io, dir)
	if err != nil {
		return nil, nil, nil, err
	}
	c, err := control.Dial(ctx, engine.ControlSocket(cfg))
	if err == nil {
		return c, cfg, c.Close, nil
	}
	if !errors.Is(err, control.ErrNoEngine) {
		return nil, nil, nil, fmt.Errorf("reach the engine: %w", err)
	}
	if cfg, err = loadConfig(io, dir); err != nil { // nobody else knows what is declared
		return nil, nil, nil, err
	}
	s, err := engine.OpenStopped(ctx, cfg)
	switch {
	case errors.Is(err, store.ErrLocked):
		return nil, nil, nil, fmt.Errorf("%w\n  hint: it takes no orders: it may be starting or stopping, or its log says why not", err)
	case err != nil:
		return nil, nil, nil, tellStore(err)
	}
	return s, cfg, func() { s.Close() }, nil
}
