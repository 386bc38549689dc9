//go:build race

package sandbox

// schedules are fewer under the race detector: its runtime now and then crashes among the timers of many bubbles of package
// testing/synctest (golang.org/issue/78156, Go 1.26; seen here once in about twenty thousand).
const schedules = 300
