package main

import (
	"testing"
	"time"

	"coppice.dev/coppice/internal/config"
)

// TestPurgeRequest: flags name a date, a time or an age, and one of them leaves the other kind alone; without any, the
// configuration decides. Red with the configuration's times where one flag is given, and with none where none is.
func TestPurgeRequest(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local)
	cfg := &config.Config{}
	cfg.Store.Retention = config.Retention{Done: 48 * time.Hour, Dead: 72 * time.Hour}
	for _, c := range []struct{ done, dead, wantDone, wantDead string }{
		{"", "", "2026-11-28 12:00", "2026-11-27 12:00"},
		{"1d", "", "2026-11-29 12:00", ""},
		{"", "2026-01-31", "", "2026-01-31 00:00"},
		{"0s", "1d12h", "2026-11-30 12:00", "2026-11-29 00:00"},
	} {
		asked, err := purgeTimes(c.done, c.dead, now)
		r := purgeRequest(cfg, asked, now)
		for _, p := range []struct {
			got  time.Time
			want string
		}{{r.DoneBefore, c.wantDone}, {r.DeadBefore, c.wantDead}} {
			got := ""
			if !p.got.IsZero() {
				got = p.got.Format("2006-01-02 15:04")
			}
			if err != nil || got != p.want || r.Lies == nil {
				t.Errorf("%q, %q: got %q, want %q; %v", c.done, c.dead, got, p.want, err)
			}
		}
	}
}
