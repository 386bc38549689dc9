package main

import (
	"testing"
	"time"
)

// TestParseTime: times as people say them, in the zone of the one who asks.
func TestParseTime(t *testing.T) {
	zone := time.FixedZone("", 5*3600+1800)
	now := time.Date(2026, 11, 30, 1, 0, 0, 0, zone)
	for s, want := range map[string]string{
		"": "0001-01-01T00:00:00Z", "today": "2026-11-30T00:00:00+05:30", "yesterday": "2026-11-29T00:00:00+05:30",
		"0s": "2026-11-30T01:00:00+05:30", "90m": "2026-11-29T23:30:00+05:30", "1d12h": "2026-11-28T13:00:00+05:30",
		"2026-01-31": "2026-01-31T00:00:00+05:30", "2026-01-31T15:04": "2026-01-31T15:04:00+05:30",
		"2026-01-31 15:04:05": "2026-01-31T15:04:05+05:30", "2026-01-31T15:04:05+02:00": "2026-01-31T15:04:05+02:00",
		"2126-01-31T00:00:00Z": "2126-01-31T00:00:00Z",
	} {
		if got, err := parseTime("since", s, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%q is %v, %v; want %s", s, got, err, want)
		}
	}
	for _, bad := range []string{"30", "-1h", "tomorrow", "2026-13-01", "99999999d", "2026-01-31T", "1h1"} {
		if got, err := parseTime("since", bad, now); err == nil {
			t.Errorf("%q is a time: %v", bad, got)
		}
	}
}
