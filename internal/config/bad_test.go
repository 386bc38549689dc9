package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files and the reference anew")

// secret is what the environment of the tests holds; no error may repeat it.
const secret = "hunter2-7f3a"

func testEnv(name string) (string, bool) {
	value, ok := map[string]string{
		"FACILITY": secret,
		"EMR_HOST": "emr.example",
		"SECRET":   secret,
		"BINARY":   secret + "\xff",
	}[name]
	return value, ok
}

// TestBad holds the text of every error. Each guard was seen red by taking it out: with the report of a check commented
// out, its file loses a line of its .want; with source replaced by text in show's callers, "environment" tells the
// secret; with cursor.at counting bytes, "columns" and "syntax_value" are off.
func TestBad(t *testing.T) {
	t.Chdir("testdata/bad")
	files, err := filepath.Glob("*.toml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".toml"), func(t *testing.T) {
			_, err := Load(file, testEnv)
			if err == nil {
				t.Fatal("accepted")
			}
			got := err.Error() + "\n"
			golden := strings.TrimSuffix(file, ".toml") + ".want"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if strings.Contains(got, secret) {
				t.Error("the errors tell what an environment variable holds")
			}
		})
	}
}
