package pipeline

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails the run if a goroutine is left. A check in fake time takes a millisecond, so there are more of them.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "500"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
