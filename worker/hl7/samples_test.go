package hl7

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// samplePaths are read from, and set in, every sample: those that handlers use, and some that few messages have.
var samplePaths = []string{"MSH-1", "MSH-2", "MSH-9", "MSH-9.2", "MSH-10", "MSH-18", "PID-3", "PID-3.1", "PID-3[2].1", "PID-3.4.1", "PID-5.1",
	"PID-5[1].2", "PID-11.3", "PV1-3.4", "PV1-7.2", "OBX-5", "OBX[2]-5", "OBX[3]-3.2", "OBX[2]-5[2].1", "NK1[2]-2.1", "ZZZ-1", "BHS-3", "FHS-9"}

func samples(t *testing.T) (files []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "shared", "samples", "*.hl7"))
	if err != nil || len(files) == 0 {
		t.Skip("missing: samples")
	}
	if len(files) <= 15 {
		t.Fatalf("%d samples", len(files))
	}
	return files
}

// Each sample is itself when it is written, also after values were set to what they are, and set to another and back.
// Seen red with a Bytes that writes CR LF as CR.
func TestSamplesStay(t *testing.T) {
	for _, file := range samples(t) {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Parse(body)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, path := range samplePaths[2:] {
			value := m.Get(path)
			if value == "" {
				continue
			}
			for _, v := range []string{value, "ZQZ", value} {
				if err := m.Set(path, v); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
		if !bytes.Equal(m.Bytes(), body) {
			t.Errorf("%s is not what it was", file)
		}
	}
}

// readAll prints what the Python SDK reads and writes: for each file of its arguments the values at the paths, and then the message with
// each of them set. Bytes as hex: JSON has no text for those that are not UTF-8.
const readAll = `
import json, sys
from coppice_worker.hl7 import HL7
paths, out = json.loads(sys.argv[1]), []
for name in sys.argv[2:]:
    with open(name, "rb") as f:
        h = HL7(f.read())
    values = [h[p].encode("utf-8", "surrogateescape").hex() for p in paths]
    for p in paths:
        try:
            h[p] = "Z\u00e9"
        except (KeyError, ValueError):
            pass
    out.append({"values": values, "set": bytes(h).hex()})
print(json.dumps(out))
`

// Go and Python read the same at every path of every sample, and make the same message of it. Seen red with a component
// counted from 0 in one of them.
func TestSamplesAgreeWithPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("missing: python3")
	}
	files := samples(t)
	paths, err := json.Marshal(samplePaths)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{"-B", "-c", readAll, string(paths)}, files...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join("..", "..", "sdk", "python"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var theirs []struct {
		Values []string
		Set    string
	}
	if err := json.Unmarshal(out, &theirs); err != nil || len(theirs) != len(files) {
		t.Fatalf("%d answers for %d files: %v", len(theirs), len(files), err)
	}
	for i, file := range files {
		agree(t, file, theirs[i].Values, theirs[i].Set)
	}
}

func agree(t *testing.T, file string, values []string, set string) {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Parse(body)
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range samplePaths {
		if got := m.Get(path); text(got) != unhex(t, values[i]) {
			t.Errorf("%s: %s reads as %q, in Python as %q", file, path, got, unhex(t, values[i]))
		}
	}
	for _, path := range samplePaths {
		_ = m.Set(path, "Zé") // what is refused here has to be refused there
	}
	if got := m.Bytes(); text(got) != unhex(t, set) {
		t.Errorf("%s: it is set to\n%q, in Python to\n%q", file, got, unhex(t, set))
	}
}

func unhex(t *testing.T, digits string) (v text) {
	t.Helper()
	if err := v.UnmarshalJSON([]byte(`{"hex":"` + digits + `"}`)); err != nil {
		t.Fatal(err)
	}
	return v
}
