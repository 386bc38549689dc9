package config

import (
	"strings"
	"testing"
)

// TestFolderName: a folder whose name is not UTF-8 is refused, since the wire could not tell a worker of it. Red without the
// look at it in Load: the error is then that there is no such file.
func TestFolderName(t *testing.T) {
	_, err := Load(t.TempDir()+"/\xff", nil)
	if err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("%v", err)
	}
}
