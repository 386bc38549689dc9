package hl7

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

const (
	one = "MSH|^~\\&|||||||ADT^A01|1|P|2.5\rPID|1\r"
	two = "MSH$*~\\&$$$$$$$ADT*A08$2$P$2.3\nPID$1\n"
)

func TestMessages(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want []string
	}{
		"batch":             {"BHS|^~\\&\r" + one + two + "BTS|2\r", []string{one, two}},
		"one of one":        {"BHS|^~\\&\r" + one + "BTS|1", []string{one}},
		"file of batches":   {"FHS|^~\\&\rBHS|^~\\&\r" + one + "BTS|1\rBHS|^~\\&\r" + two + "BTS|1\rFTS|2\r", []string{one, two}},
		"file of messages":  {"FHS|^~\\&\r" + one + two + "FTS|1\r", []string{one, two}},
		"no counts":         {"FHS|^~\\&\rBHS|^~\\&\r" + one + "BTS\rFTS||comment\r", []string{one}},
		"spaces in a count": {"BHS|^~\\&\r" + one + "BTS| 1 |x\r", []string{one}},
		"blank lines":       {"\xef\xbb\xbfBHS|^~\\&\r\n\r\n" + one + "\r\n\r\n" + two + "\r\nBTS|2\r\n\r\n", []string{one, two}},
		"blank inside":      {"BHS|^~\\&\r" + one + "\rOBX|1\rBTS|1\r", []string{one + "\rOBX|1\r"}},
		"other separator":   {"BHS#^~\\&\r" + one + "BTS#1\r", []string{one}},
		"not its separator": {"BHS#^~\\&\r" + one + "BTS|7\rBTS#1\r", []string{one + "BTS|7\r"}},
		"MSHA is no header": {"BHS|^~\\&\r" + one + "MSHA|x\rBTS|1\r", []string{one + "MSHA|x\r"}},
	} {
		got, err := Messages([]byte(tc.body))
		if err != nil || len(got) != len(tc.want) {
			t.Errorf("%s: %q, %v", name, got, err)
			continue
		}
		for i := range got {
			if string(got[i]) != tc.want[i] {
				t.Errorf("%s: part %d is %q, want %q", name, i, got[i], tc.want[i])
			}
		}
	}
}

// Each is red without the check that its word names.
func TestMalformedBatch(t *testing.T) {
	for want, bodies := range map[string][]string{
		"no message":                {"BHS|^~\\&\rBTS|0\r", "FHS|^~\\&\rFTS\r", "FHS|^~\\&\rBHS|^~\\&\rBTS\rFTS|1\r"},
		"no BTS":                    {"BHS|^~\\&\r" + one, "BHS|^~\\&\r"},
		"no FTS":                    {"FHS|^~\\&\rBHS|^~\\&\r" + one + "BTS|1\r", "FHS|^~\\&\r" + one},
		"BTS-1 says ":               {"BHS|^~\\&\r" + one + "BTS|2\r", "BHS|^~\\&\r" + one + "BTS|many\r", "BHS|^~\\&\r" + one + "BTS|-1\r"},
		"FTS-1 says ":               {"FHS|^~\\&\r" + one + two + "FTS|2\r", "FHS|^~\\&\rBHS|^~\\&\r" + one + "BTS|1\rFTS|2\r"},
		"belongs to no message":     {"BHS|^~\\&\rPID|1\r" + one + "BTS|1\r", "BHS|^~\\&\r" + one + "BTS|1\rPID|1\r"},
		"outside of the batch":      {"BHS|^~\\&\r" + one + "BTS|1\r" + two},
		"BHS inside":                {"BHS|^~\\&\r" + one + "BHS|^~\\&\r" + two + "BTS|1\r"},
		"or behind it":              {"BHS|^~\\&\r" + one + "BTS|1\rBHS|^~\\&\r" + two + "BTS|1\r", "BHS|^~\\&\r" + one + "BTS|1\rFHS|^~\\&\r"},
		"BTS without":               {"FHS|^~\\&\r" + one + "BTS|1\rFTS|1\r"},
		"FTS ":                      {"BHS|^~\\&\r" + one + "BTS|1\rFTS|1\r", "FHS|^~\\&\rBHS|^~\\&\r" + one + "FTS|1\r"},
		"more than 10000 messages":  {"BHS|^~\\&\r" + strings.Repeat(one, MaxParts+1) + fmt.Sprintf("BTS|%d\r", MaxParts+1)},
		"segment has no end within": {"BHS|^~\\&\rMSH|" + strings.Repeat("x", MaxHeader) + "\rBTS|1\r"},
	} {
		for _, body := range bodies {
			if got, err := Messages([]byte(body)); !errors.Is(err, ErrBatch) || !strings.Contains(err.Error(), want) || got != nil {
				t.Errorf("%.60q: %d parts, %v; want %q", body, len(got), err, want)
			}
		}
	}
}

// Whatever a batch holds, its parts are messages, stand in it in order, and lack nothing but blank lines and the envelope.
func FuzzMessages(f *testing.F) {
	for _, seed := range []string{"BHS|^~\\&\r" + one + two + "BTS|2\r", "FHS|^~\\&\rBHS|^~\\&\n\n" + one + "\r\nBTS\rFTS|1", "FHS|\rMSH|\n\r\rBTS\rFTS|"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		parts, err := Messages(body)
		if (err == nil) != (len(parts) > 0) || !bytes.Equal(before, body) {
			t.Fatalf("%d parts, %v", len(parts), err)
		}
		rest := body
		for _, part := range parts {
			if h, err := ParseHeader(part); err != nil || h.Batch() {
				t.Fatalf("part %q: %+v, %v", part, h, err)
			}
			i := bytes.Index(rest, part)
			if i < 0 {
				t.Fatalf("part %q is not in what is left of the batch", part)
			}
			rest = rest[i+len(part):]
		}
	})
}
