//go:build race

package sqlite

// Under the race detector, where a statement of SQLite takes many times as long, there are fewer random runs.
const (
	orderRounds = "1"
	modelChecks = "25"
)
