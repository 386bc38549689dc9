package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLocate: a folder's store is known whatever else is wrong with its configuration. Red with Load in its place.
func TestLocate(t *testing.T) {
	dir := t.TempDir()
	locate := func(text string) (*Config, error) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Locate(dir, nil)
	}
	for what, text := range map[string]string{
		"good":       good,
		"unset":      good + "settings = { key = \"${NOT_SET}\" }\n",
		"misspelt":   good + "deadlin = \"5s\"\n",
		"half":       "version = 1\n[inbound.adt]\n",
		"wrong kind": good + "[outbound]\nemr = 5\n",
	} {
		cfg, err := locate("store.path = \"q.db\"\n" + text)
		if err != nil || filepath.Base(cfg.Store.Path) != "q.db" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, c := range map[string][2]string{
		"no TOML":     {good + "nonsense", "coppice.toml:8"},
		"unset store": {"store.path = \"${NOT_SET}\"\n" + good, "NOT_SET is not set"},
		"store":       {"store = 5\n" + good, "store must be a table"},
	} {
		if _, err := locate(c[0]); err == nil || !strings.Contains(err.Error(), c[1]) || strings.Contains(err.Error(), "\n[") {
			t.Errorf("%s: %v, want %q", what, err, c[1])
		}
	}
	if _, err := Locate(filepath.Join(dir, "none"), nil); err == nil {
		t.Error("a folder that is not there is located")
	}
}
