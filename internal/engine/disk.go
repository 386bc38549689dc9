package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// askDisk is how long an answer of the system about the disk is good for.
const askDisk = time.Second

// disk watches the room on the store's disk. With less than min nothing is received, so that what is left is for what has
// been received already: its deliveries, and the record of them. It is received again once there is an eighth more, lest it
// stop and go with every message.
type disk struct {
	min  func() int64 // 0: any room will do
	free func() (int64, error)
	tell func(low bool, free int64) // on each change, one after the other

	mu    sync.Mutex
	asked time.Time
	low   bool
}

// full says whether there is too little room to receive. While the system gives no answer, the one before holds.
func (d *disk) full() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); (d.low || d.min() > 0) && now.Sub(d.asked) >= askDisk {
		d.asked = now
		if free, err := d.free(); err == nil {
			d.is(free)
		}
	}
	return d.low
}

func (d *disk) is(free int64) {
	least := d.min()
	if d.low {
		least += least / 8
	}
	low := free < least
	if low != d.low {
		d.low = low
		d.tell(low, free)
	}
}

// watchDisk makes the watch, and says so if this system cannot be asked.
func (e *Engine) watchDisk() *disk {
	o, path := e.options, e.now.Load().cfg.Store.Path
	d := &disk{min: func() int64 { return e.now.Load().cfg.Store.MinFree }, free: func() (int64, error) { return o.free(path) }}
	d.tell = func(low bool, free int64) {
		level, text := slog.LevelInfo, "disk has room again: receiving goes on"
		if low {
			level, text = slog.LevelError, "disk is low: nothing is received until there is room; deliveries go on"
		}
		if low {
			e.alerts.raise(alertDisk, "disk", text)
		} else {
			e.alerts.clear(alertDisk, "disk")
		}
		e.log.Log(context.Background(), level, text, "free", free, "min_free", d.min())
		if o.Disk != nil {
			o.Disk(low, free)
		}
	}
	if _, err := d.free(); err != nil && d.min() > 0 && !errors.Is(err, errors.ErrUnsupported) {
		e.log.Warn("room on the store's disk is not known", "err", err)
	}
	return d
}
