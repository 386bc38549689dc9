//go:build !race

package sandbox

const schedules = 3000
