package hl7

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// TestSplit splits each text whole and byte by byte.
func TestSplit(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want []string
		err  string
	}{
		"cr":            {"MSH|1\rPID|a\rMSH|2\rPID|b\r", []string{"MSH|1\rPID|a\r", "MSH|2\rPID|b\r"}, ""},
		"lf":            {"MSH|1\nPID|a\nMSH|2", []string{"MSH|1\nPID|a\n", "MSH|2"}, ""},
		"crlf":          {"MSH|1\r\nPID|a\r\n\r\nMSH|2\r\n", []string{"MSH|1\r\nPID|a\r\n", "MSH|2\r\n"}, ""},
		"one a line":    {"MSH|1\rPID|a\n\nMSH|2\rPID|b\n\n", []string{"MSH|1\rPID|a\n", "MSH|2\rPID|b\n"}, ""},
		"mark":          {"\xef\xbb\xbfMSH|1\rMSH|2\r", []string{"\xef\xbb\xbfMSH|1\r", "MSH|2\r"}, ""},
		"blank inside":  {"MSH|1\n\nPID|a\n", []string{"MSH|1\n\nPID|a\n"}, ""},
		"blank last":    {"MSH|1\rPID|a\r\n\r\n\n\r", []string{"MSH|1\rPID|a\r\n\r\n\n\r"}, ""},
		"blank, mark":   {"\n\xef\xbb\xbf", nil, "line 2: no line begins MSH, BHS or FHS"},
		"batch, blank":  {"BHS|\rMSH|1\rBTS|1\r\r\r", []string{"BHS|\rMSH|1\rBTS|1\r\r\r"}, ""},
		"blanks fit":    {"MSH|1\n" + strings.Repeat("\n", 994), []string{"MSH|1\n" + strings.Repeat("\n", 994)}, ""},
		"blanks":        {"MSH|1\n" + strings.Repeat("\n", 995), nil, "message 1"},
		"blanks inside": {"MSH|1\n" + strings.Repeat("\n", 3000) + "PID|a\r", nil, "message 1"},
		"blanks amid":   {"MSH|1\n" + strings.Repeat("\n", 3000) + "MSH|2\r", []string{"MSH|1\n", "MSH|2\r"}, ""},
		"blank first":   {"\r\n \nMSH|1\n", []string{"MSH|1\n"}, ""},
		"batch":         {"BHS|\rMSH|1\rMSH|2\rBTS|2\rMSH|3\r", []string{"BHS|\rMSH|1\rMSH|2\rBTS|2\r", "MSH|3\r"}, ""},
		"file":          {"FHS|\rBHS|\rMSH|1\rBTS|1\rBHS|\rMSH|2\rBTS|1\rFTS|2\rMSH|3\r", []string{"FHS|\rBHS|\rMSH|1\rBTS|1\rBHS|\rMSH|2\rBTS|1\rFTS|2\r", "MSH|3\r"}, ""},
		"two batches":   {"BHS|\rMSH|1\rBHS|\rMSH|2\rBTS|1\r", []string{"BHS|\rMSH|1\r", "BHS|\rMSH|2\rBTS|1\r"}, ""},
		"in mid-line":   {"MSH|1\rNTE|see MSH|x\r", []string{"MSH|1\rNTE|see MSH|x\r"}, ""},
		"any byte":      {"MSH|\x00\xff\rPID|\xe9\r", []string{"MSH|\x00\xff\rPID|\xe9\r"}, ""},
		"none":          {"hello\n", nil, "line 1: no line begins MSH, BHS or FHS"},
		"empty":         {"", nil, "no line begins MSH, BHS or FHS"},
		"before":        {"junk\rMSH|1\r", nil, "line 1: no line begins MSH, BHS or FHS"},
		"line too long": {"MSH|1\rMSH|" + strings.Repeat("x", 2000) + "\r", []string{"MSH|1\r"}, "is over 1000 bytes"},
		"too long":      {"MSH|1\rMSH|2\r" + strings.Repeat("OBX|1\r", 300), []string{"MSH|1\r"}, "message 2"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range []interface{ Read([]byte) (int, error) }{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
				var got []string
				var failed error
				for m, err := range Split(r, 1000) {
					if err != nil {
						failed = err
						break
					}
					got = append(got, string(m))
				}
				if c.err == "" && failed != nil || c.err != "" && (failed == nil || !strings.Contains(failed.Error(), c.err)) {
					t.Errorf("error %v, want %q", failed, c.err)
				}
				if c.err == "" && !slices.Equal(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
		})
	}
}

// TestSplitReaderError: what a reader says is passed on, behind nothing that is half a message.
func TestSplitReaderError(t *testing.T) {
	boom := errors.New("boom")
	var got [][]byte
	for m, err := range Split(iotest.TimeoutReader(bytes.NewReader([]byte("MSH|1\r"))), 100) {
		if err == nil {
			got = append(got, m)
		}
	}
	for m, err := range Split(iotest.ErrReader(boom), 100) {
		if m != nil || !errors.Is(err, boom) {
			t.Errorf("got %q, %v", m, err)
		}
	}
	if len(got) > 0 {
		t.Errorf("a message of a reader that failed: %q", got)
	}
}
