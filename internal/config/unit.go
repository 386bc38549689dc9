package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// unit is a word behind a number, and what one of it is worth.
type unit struct {
	name  string
	worth int64
}

// durationUnits lists the units of a duration, in nanoseconds, largest first.
func durationUnits() []unit {
	return []unit{
		{"d", int64(24 * time.Hour)},
		{"h", int64(time.Hour)},
		{"m", int64(time.Minute)},
		{"s", int64(time.Second)},
		{"ms", int64(time.Millisecond)},
	}
}

// sizeUnits lists the units of a size, in bytes, largest first.
func sizeUnits() []unit {
	return []unit{
		{"TiB", 1 << 40},
		{"TB", 1e12},
		{"GiB", 1 << 30},
		{"GB", 1e9},
		{"MiB", 1 << 20},
		{"MB", 1e6},
		{"KiB", 1 << 10},
		{"KB", 1e3},
		{"B", 1},
	}
}

// forever is what is longer than any duration, where there is such a thing.
const forever = "forever"

const (
	durationForm = `write whole numbers with the units d, h, m, s or ms, the largest first, such as "5s", "1m30s" or "7d"`
	sizeForm     = `write a whole number with one of the units B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, such as "16MiB"`
)

var (
	errForm  = errors.New("not of the accepted form")
	errLarge = errors.New("too large")
)

// parseDuration reads durationForm: one or more numbers with units, each unit once, largest first.
func parseDuration(s string) (time.Duration, error) {
	var sum int64
	units := durationUnits()
	if s == "" {
		return 0, errForm
	}
	for s != "" {
		var n int64
		var err error
		n, units, s, err = quantity(s, units)
		if err != nil {
			return 0, err
		}
		if sum > math.MaxInt64-n {
			return 0, errLarge
		}
		sum += n
	}
	return time.Duration(sum), nil
}

// ParseDuration reads a duration as a configuration holds it.
func ParseDuration(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is %w: %s", s, err, durationForm)
	}
	return d, nil
}

// parseSize reads sizeForm.
func parseSize(s string) (int64, error) {
	n, _, rest, err := quantity(s, sizeUnits())
	if err == nil && rest != "" {
		return 0, errForm
	}
	return n, err
}

// quantity reads one number with its unit off the front of s. It returns what it is worth, the units smaller than the
// one it found, and what is left of s.
func quantity(s string, units []unit) (n int64, smaller []unit, rest string, err error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	word := digits + strings.IndexAny(s[digits:]+"0", "0123456789")
	if digits == 0 {
		return 0, nil, "", errForm
	}
	for i, u := range units {
		if u.name != s[digits:word] {
			continue
		}
		n, err := strconv.ParseInt(s[:digits], 10, 64)
		if err != nil || n > math.MaxInt64/u.worth {
			return 0, nil, "", errLarge
		}
		return n * u.worth, units[i+1:], s[word:], nil
	}
	return 0, nil, "", errForm
}

// formatDuration writes d, which is not negative, as parseDuration reads it. What is less than a millisecond is cut.
func formatDuration(d time.Duration) string {
	var b strings.Builder
	rest := int64(d)
	for _, u := range durationUnits() {
		if n := rest / u.worth; n > 0 {
			b.WriteString(strconv.FormatInt(n, 10) + u.name)
			rest -= n * u.worth
		}
	}
	if b.Len() == 0 {
		return "0s"
	}
	return b.String()
}

// formatSize writes n, which is not negative, as parseSize reads it, in the largest unit that is exact.
func formatSize(n int64) string {
	for _, u := range sizeUnits() {
		if n >= u.worth && n%u.worth == 0 {
			return strconv.FormatInt(n/u.worth, 10) + u.name
		}
	}
	return "0B"
}
