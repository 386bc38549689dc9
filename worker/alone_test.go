package worker

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const patience = 30 * time.Second

const aloneMessage = "MSH|^~\\&|||||||ADT^A01^ADT_A01|C1\r\nPID|1||4711\rPV1|1|\xe9\r"

// aloneFunctions are alonePython in Go.
func aloneFunctions() []Function {
	return []Function{
		Router("route", func(_ context.Context, m *Message) ([]string, error) {
			return []string{"admit", m.Type + m.ControlID}, nil
		}),
		Router("none", func(context.Context, *Message) ([]string, error) { return nil, nil }),
		Handler("admit", func(_ context.Context, m *Message) (Result, error) {
			h, err := m.HL7()
			if err != nil {
				return Nothing, err
			}
			facility, err := Setting[string](m, "facility")
			if err != nil {
				return Nothing, err
			}
			m.Tag("mrn", h.Get("PID-3.1"))
			if err := h.Set("PV1-3.4", facility); err != nil {
				return Nothing, err
			}
			return Sends(Send("emr", h.Bytes()), Send("archive", m.Body)), nil
		}),
		Handler("drop", func(context.Context, *Message) (Result, error) { return Drop("no MRN"), nil }),
		Handler("nothing", func(context.Context, *Message) (Result, error) { return Nothing, nil }),
		Handler("raises", func(context.Context, *Message) (Result, error) { return Nothing, errors.New("no such patient") }),
		Handler("panics", func(context.Context, *Message) (Result, error) { panic("oh") }),
	}
}

const alonePython = `
from coppice_worker import router, handler, Send, Drop

@router
def route(msg, ctx):
    return ["admit", msg.type + msg.control_id]

@router
def none(msg, ctx):
    pass

@handler
def admit(msg, ctx):
    h = msg.hl7
    msg.tag(mrn=h["PID-3.1"])
    h["PV1-3.4"] = ctx.settings["facility"]
    return [Send("emr", h), Send("archive", msg.body)]

@handler
def drop(msg, ctx):
    return Drop("no MRN")

@handler
def nothing(msg, ctx):
    pass

@handler
def raises(msg, ctx):
    raise LookupError("no such patient")
`

func runAlone(stdin string, args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = alone(args, strings.NewReader(stdin), &out, &err, aloneFunctions())
	return status, out.String(), err.String()
}

func TestAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a01.hl7")
	if err := os.WriteFile(file, []byte(aloneMessage), 0o600); err != nil {
		t.Fatal(err)
	}
	sent := "tag: mrn=4711\nsend to emr, 63 bytes:\nMSH|^~\\&|||||||ADT^A01^ADT_A01|C1\nPID|1||4711\nPV1|1|\\xe9|^^^WOOD\n" +
		"send to archive, 55 bytes:\nMSH|^~\\&|||||||ADT^A01^ADT_A01|C1\nPID|1||4711\nPV1|1|\\xe9\n"
	for _, c := range []struct {
		args   string
		status int
		stdout string // whole
		stderr string // a part
	}{
		{"admit FILE --set facility=WOOD", 0, sent, ""},
		{"--set facility=WOOD admit --timeout 1.5 -", 0, sent, ""},
		{"route FILE", 0, "handlers: admit, ADT^A01C1\n", ""},
		{"none FILE", 0, "handlers: none\n", ""},
		{"drop FILE", 0, "drop: no MRN\n", ""},
		{"nothing FILE", 0, "sends nothing\n", ""},
		{"admit FILE", 1, "", `the setting "facility" is not there`},
		{"raises FILE", 1, "", "*errors.errorString: no such patient\n"},
		{"panics FILE", 1, "", "panic: oh\ngoroutine "},
		{"admitt FILE", 1, "", `this worker has no handler "admitt"; it offers: router "route", `},
		{"admit FILE.absent", 1, "", "a01.hl7.absent"},
		{"admit", 2, "", "usage: run FUNCTION MESSAGE"},
		{"admit FILE more", 2, "", "usage: run FUNCTION MESSAGE"},
		{"admit FILE --sett x=1", 2, "", "-sett"},
		{"-h", 0, "", "usage: run FUNCTION MESSAGE"},
	} {
		status, stdout, stderr := runAlone(aloneMessage, strings.Fields(strings.ReplaceAll(c.args, "FILE", file))...)
		if status != c.status || stdout != c.stdout || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("%s: status %d, stdout %q, stderr %q", c.args, status, stdout, stderr)
		}
	}
}

// The Python SDK prints the same and ends with the same status. Seen red with another word in show.
func TestAloneAsPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("missing: python3")
	}
	dir := t.TempDir()
	file, code := filepath.Join(dir, "a01.hl7"), filepath.Join(dir, "adt.py")
	if err := errors.Join(os.WriteFile(file, []byte(aloneMessage), 0o600), os.WriteFile(code, []byte(alonePython), 0o600)); err != nil {
		t.Fatal(err)
	}
	sdk, err := filepath.Abs(filepath.Join("..", "sdk", "python"))
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"admit FILE --set facility=WOOD", "route FILE", "none FILE", "drop FILE", "nothing FILE", "raises FILE", "admitt FILE",
		"admit FILE.absent", "admit", "admit FILE more"} {
		given := strings.Fields(strings.ReplaceAll(args, "FILE", file))
		status, stdout, stderr := runAlone("", given...)
		given[0] = code + ":" + given[0]
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, python, append([]string{"-B", "-m", "coppice_worker", "run"}, given...)...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+sdk)
		theirs, err := cmd.Output()
		cancel()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(theirs), "\r\n", "\n")
		if status != cmd.ProcessState.ExitCode() || stdout != text {
			t.Errorf("%s: status %d, stdout %q, stderr %q; in Python status %d, stdout %q", args, status, stdout, stderr, cmd.ProcessState.ExitCode(), text)
		}
	}
}
