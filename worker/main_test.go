//go:build unix

package worker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"coppice.dev/coppice/sdk/sdktest"
	"coppice.dev/coppice/wire"
)

// asWorker makes the test binary a worker. COPPICE_WIRE alone would not do: the test of its absence needs one, too.
const asWorker = "COPPICE_TEST_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(asWorker) {
	case "serve":
		Main(Handler("echo", echo), Handler("look", look), Handler("logs", logs), Handler("panics", func(context.Context, *Message) (Result, error) { panic("oh") }))
	case "look":
		fmt.Print(openDescriptors())
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func echo(ctx context.Context, m *Message) (Result, error) {
	fmt.Println("printed", m.ID)
	return Send("emr", m.Body), nil
}

// look answers what a program that it starts finds of the wire.
func look(ctx context.Context, m *Message) (Result, error) {
	exe, err := os.Executable()
	if err != nil {
		return Nothing, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), asWorker+"=look")
	out, err := cmd.Output()
	value, there := os.LookupEnv("COPPICE_WIRE")
	return Sends(Send("descriptors", out), Send("environment", fmt.Appendf(nil, "%q %t", value, there))), err
}

// openDescriptors lists which of 3 and 4 are pipes, as a program finds them that was started with them or without.
func openDescriptors() string {
	var found []string
	for _, fd := range []uintptr{3, 4} {
		info, err := os.NewFile(fd, "").Stat()
		if err == nil && info.Mode()&os.ModeNamedPipe != 0 {
			found = append(found, fmt.Sprint(fd))
		}
	}
	return strings.Join(found, " ")
}

func start(t *testing.T, env ...string) *sdktest.Worker {
	t.Helper()
	return startWith(t, nil, env...)
}

func startWith(t *testing.T, args []string, env ...string) *sdktest.Worker {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(env, asWorker+"=serve")
	return sdktest.Start(t, cmd)
}

// For the descriptors red without notInherited, for the environment without os.Unsetenv.
func TestMainServes(t *testing.T) {
	e := start(t, "COPPICE_WIRE=3,4")
	if ready, ok := e.Ask(&wire.Boot{}).(*wire.Ready); !ok || len(ready.Offers) != 4 {
		t.Fatalf("%+v", ready)
	}
	if r, ok := e.Ask(request(wire.PhaseHandle, "echo")).(*wire.Result); !ok || string(r.Sends[0].Body) != "MSH|" {
		t.Errorf("%+v", r)
	}
	if f, ok := e.Ask(request(wire.PhaseHandle, "panics")).(*wire.Fail); !ok || f.Fault.Type != "panic" {
		t.Errorf("%+v", f)
	}
	r, ok := e.Ask(request(wire.PhaseHandle, "look")).(*wire.Result)
	if !ok || len(r.Sends[0].Body) != 0 || string(r.Sends[1].Body) != `"" false` {
		t.Errorf("a program that it starts finds %s; of the environment is left %s", r.Sends[0].Body, r.Sends[1].Body)
	}
	e.To.Close()
	if status := e.Wait(); status != ExitOK || e.Out.String() != "printed 7\n" || e.Err.Len() != 0 {
		t.Errorf("status %d, stdout %q, stderr %q", status, &e.Out, &e.Err)
	}
}

// Red with run not telling a violation from other errors.
func TestMainRefusesTheEngine(t *testing.T) {
	e := start(t, "COPPICE_WIRE=3,4")
	e.Ask(&wire.Boot{})
	if _, err := e.To.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	status := e.Wait()
	if got := e.Err.String(); status != ExitViolation || !strings.Contains(got, "by the engine: protocol violation: frame-cap") || strings.Count(got, "\n") != 1 {
		t.Errorf("status %d, stderr %q", status, got)
	}
}

func TestMainCannotBoot(t *testing.T) {
	e := start(t, "COPPICE_WIRE=3,4")
	if f, ok := e.Ask(&wire.Boot{Offers: []wire.Offer{{Phase: wire.PhaseRoute, Name: "r"}}}).(*wire.BootFail); !ok {
		t.Errorf("%+v", f)
	}
	if status := e.Wait(); status != ExitLost {
		t.Errorf("status %d", status)
	}
}

func TestMainWithoutAnEngine(t *testing.T) {
	for env, want := range map[string]string{"X=1": "this program is a Coppice worker", "COPPICE_WIRE=": "not two numbers",
		"COPPICE_WIRE=3,4,": "not two numbers", "COPPICE_WIRE=03,4": "not two numbers", "COPPICE_WIRE=900,901": "descriptor 900",
		"COPPICE_WIRE=9000000000000000000,4": "descriptor", "Y=1": "add: run FUNCTION MESSAGE"} {
		e := start(t, env)
		if status := e.Wait(); status != ExitNoEngine || !strings.Contains(e.Err.String(), want) {
			t.Errorf("%s: status %d, %q", env, status, &e.Err)
		}
	}
}

// What a function logs is a line on stderr, without a time and from INFO on. An engine's worker is one whatever its arguments are. Red
// with run not looking for the engine first.
func TestMainAlone(t *testing.T) {
	e := startWith(t, []string{"run", "logs", os.DevNull})
	if status := e.Wait(); status != ExitOK || e.Out.String() != "sends nothing\n" || e.Err.String() != "level=INFO msg=\"to look\" function=logs mrn=1\n" {
		t.Errorf("status %d, stdout %q, stderr %q", status, &e.Out, &e.Err)
	}
	e = startWith(t, []string{"run", "logs", os.DevNull}, "COPPICE_WIRE=3,4")
	if ready, ok := e.Ask(&wire.Boot{}).(*wire.Ready); !ok {
		t.Errorf("%+v", ready)
	}
}

func logs(_ context.Context, m *Message) (Result, error) {
	m.Log().Debug("nobody sees")
	m.Log().Info("to look", "mrn", 1)
	return Nothing, nil
}
