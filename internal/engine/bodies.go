package engine

import (
	"context"
	"log/slog"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/room"
)

// roomFor makes the memory that all bodies of an engine share. It tells the log of each time that somebody has to wait for it.
func (e *Engine) roomFor(cfg *config.Config) *room.Room {
	return room.New(cfg.Memory.Bodies, cfg.LargestMessage(), func(tight bool, used room.Used) {
		level, text := slog.LevelInfo, "memory has room for bodies again"
		if tight {
			level, text = slog.LevelWarn, "bodies fill the memory that there is for them: the next ones wait"
		}
		e.log.Log(context.Background(), level, text, "receiving", used.Begun+used.Grown, "working", used.Work)
	})
}
