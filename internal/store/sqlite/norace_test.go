//go:build !race

package sqlite

const (
	orderRounds = "2"
	modelChecks = "100"
)
