package confine

import (
	"slices"
	"testing"
)

// TestEnvironment: nothing of the host's but what is allowed, and each name once. Red without either.
func TestEnvironment(t *testing.T) {
	host := []string{"SECRET=1", "PATH=/bin", "LANG=C", "AWS_KEY=2", "=odd", "none", "HOME=/root"}
	got := Environment(host, "/s", "LANG=de", "X=1", "X=2", "TMP=/elsewhere")
	slices.Sort(got)
	want := []string{"HOME=/s", "LANG=de", "PATH=/bin", "TEMP=/s", "TMP=/elsewhere", "TMPDIR=/s", "X=2"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
