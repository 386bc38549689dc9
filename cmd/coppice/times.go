package main

import (
	"time"

	"coppice.dev/coppice/internal/config"
)

// timeForms is what parseTime takes, in short.
const timeForms = "today, yesterday, 2h, 3d, 2026-11-30 or 2026-11-30T08:00"

// parseTime reads a flag that holds a time as people say it: an age such as 90m, 2h, 3d or 1d12h; today, yesterday; a date, or a
// date and a time, both local; or RFC 3339. Zero for an empty one.
func parseTime(flag, s string, now time.Time) (time.Time, error) {
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch s {
	case "":
		return time.Time{}, nil
	case "today":
		return midnight, nil
	case "yesterday":
		return midnight.AddDate(0, 0, -1), nil
	}
	if age, err := config.ParseDuration(s); err == nil {
		return now.Add(-age), nil
	}
	for _, form := range []string{time.DateOnly, "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateTime} {
		if t, err := time.ParseInLocation(form, s, now.Location()); err == nil {
			return t, nil
		}
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	return time.Time{}, usage("--%s %q is no time: say %s", flag, s, timeForms)
}
