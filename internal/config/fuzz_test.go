package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse: no text makes Parse panic; every error has a place, is one line with at most one hint, and tells no secret.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.toml", "testdata/good/*.toml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatal(pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Add([]byte("[[a]]\n[a.b]\n[[a]]\nc.d = [[{e=1}]]\n"))
	f.Add([]byte("a = " + strings.Repeat("[", 500) + strings.Repeat("]", 500)))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse(filepath.Join("testdata", "good", "fuzz.toml"), data, testEnv)
		if err == nil {
			if cfg.Version != 1 || len(cfg.Inbounds) == 0 || len(cfg.Handlers) == 0 {
				t.Errorf("accepted: %+v", cfg)
			}
			return
		}
		var all Errors
		if !errors.As(err, &all) || len(all) == 0 {
			t.Fatalf("%T: %v", err, err)
		}
		inFile := strings.Contains(string(data), secret)
		for _, e := range all {
			if e.Line < 1 || e.Column < 1 || e.Line > strings.Count(string(data), "\n")+1 {
				t.Errorf("no place: %v", e)
			}
			if strings.Contains(e.Msg+e.Hint, "\n") || e.Msg == "" {
				t.Errorf("not one line: %q, %q", e.Msg, e.Hint)
			}
			if !inFile && strings.Contains(e.Error(), secret) {
				t.Errorf("tells a secret: %v", e)
			}
		}
	})
}
