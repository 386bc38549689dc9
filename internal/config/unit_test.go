package config

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"5s": 5 * time.Second, "1m30s": 90 * time.Second, "7d": 7 * 24 * time.Hour, "0s": 0, "250ms": 250 * time.Millisecond,
		"1d2h3m4s5ms": 26*time.Hour + 3*time.Minute + 4*time.Second + 5*time.Millisecond, "007s": 7 * time.Second, "90m": 90 * time.Minute,
	} {
		if got, err := parseDuration(s); got != want || err != nil {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "5", "s", "-5s", "+5s", "1.5s", "5 s", " 5s", "5S", "5s5s", "5s1m", "5sec", "5s3", "1w", "5µs", "٥s"} {
		if got, err := parseDuration(s); !errors.Is(err, errForm) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"106752d", "99999999999999999999s", "106751d99h"} {
		if got, err := parseDuration(s); !errors.Is(err, errLarge) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"16MiB": 16 << 20, "512KiB": 512 << 10, "1GB": 1e9, "0B": 0, "1B": 1, "3TB": 3e12, "2TiB": 2 << 40, "9223372036854775807B": math.MaxInt64,
	} {
		if got, err := parseSize(s); got != want || err != nil {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "16", "MiB", "16mib", "16M", "1.5MiB", "16 MiB", "-1B", "1MiB1KiB", "1MiB "} {
		if got, err := parseSize(s); !errors.Is(err, errForm) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"9223372036854775808B", "8388608TiB"} {
		if got, err := parseSize(s); !errors.Is(err, errLarge) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}

// TestUnitsRoundTrip: what is written is read back. Red with the overflow check of quantity taken out, or a unit's worth
// changed for one direction.
func TestUnitsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "duration")).Truncate(time.Millisecond)
		if got, err := parseDuration(formatDuration(d)); got != d || err != nil {
			t.Errorf("%s: %v, %v", formatDuration(d), got, err)
		}
		n := rapid.Int64Range(0, math.MaxInt64).Draw(t, "size")
		if got, err := parseSize(formatSize(n)); got != n || err != nil {
			t.Errorf("%s: %v, %v", formatSize(n), got, err)
		}
	})
}

// TestUnitsAgree: what is read is what the standard library reads, where it takes the same form; no text gives a negative
// value.
func TestUnitsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`([0-9]{1,20}(h|m|s|ms)){1,4}`).Draw(t, "text")
		got, err := parseDuration(s)
		if want, stdErr := time.ParseDuration(s); err == nil && (stdErr != nil || got != want) {
			t.Errorf("%q: %v, the standard library says %v, %v", s, got, want, stdErr)
		}
		if size, _ := parseSize(rapid.StringMatching(`[0-9]{0,25}([KMGT]i?)?B?`).Draw(t, "size")); got < 0 || size < 0 {
			t.Errorf("negative: %d, %d", got, size)
		}
	})
}

func TestClosest(t *testing.T) {
	names := []string{"run", "command", "deadline", "to"}
	for name, want := range map[string]string{
		"deadlin": "deadline", "dedaline": "deadline", "Command": "command", "rnu": "", "ru": "run", "x": "", "": "", "timeout": "",
	} {
		if got := closest(name, names); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
