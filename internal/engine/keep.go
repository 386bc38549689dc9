package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/store"
)

// When the store is cleared of what has had its time.
const (
	purgeFirst = 10 * time.Second // after the start, which has other things to do
	purgeEvery = time.Minute
)

// keep purges the store from time to time until ctx ends. With nothing to purge that is a few look-ups.
func (e *Engine) keep(ctx context.Context) {
	t := time.NewTimer(purgeFirst)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		e.disk.full() // so that somebody hears of it also while nothing arrives
		if err := e.purge(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("store is not purged", "err", err)
		}
		t.Reset(purgeEvery)
	}
}

// purge takes step after step until there is none left. Between two it leaves the store to others for three times as long
// as the step took.
func (e *Engine) purge(ctx context.Context) error {
	var gone store.Purged
	defer func() {
		if gone.Messages > 0 {
			e.log.Info("purged", "messages", gone.Messages, "bytes", gone.Bytes)
		}
	}()
	r := Retention(e.now.Load().cfg, time.Now()) // of one time, or there would be no end to it
	for {
		began := time.Now()
		p, err := e.store.Purge(ctx, r)
		gone.Messages += p.Messages
		gone.Bytes += p.Bytes
		if err != nil || !p.More {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(3 * time.Since(began)):
		}
	}
}

// Retention is what a configuration lets go at a time.
func Retention(cfg *config.Config, now time.Time) store.PurgeRequest {
	before := func(kept time.Duration) time.Time {
		if kept == 0 {
			return time.Time{}
		}
		return now.Add(-kept)
	}
	return store.PurgeRequest{DoneBefore: before(cfg.Store.Retention.Done), DeadBefore: before(cfg.Store.Retention.Dead), Lies: lies}
}

// lies says whether a file may still be where it was. Only who can be sure that it is not may forget it.
func lies(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
