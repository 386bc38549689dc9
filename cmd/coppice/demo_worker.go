package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/worker"
)

// The notes by which the demonstration tells the handler agenda to misbehave.
const (
	noteSpin   = "DEMO spin"            // uses the CPU and never answers
	noteCrash  = "DEMO crash"           // dies, each time
	noteOnce   = "DEMO crash once"      // dies at the first attempt
	noteEscape = "DEMO leave an orphan" // leaves a process that holds the response pipe, and hangs
)

// orphanLife bounds the process that the demonstration leaves behind, should nothing else end it.
const orphanLife = time.Minute

// demoWorkerCommand is the demonstration's worker: this program, executed again by the engine.
func demoWorkerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "demo-worker", Hidden: true, Args: cobra.ArbitraryArgs}
	return verb(cmd, func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return orphan(args[0], os.Stderr)
		}
		pipe := responsePipe()
		worker.Main(worker.Router("route", demoRoute), worker.Handler("admit", admit), worker.Handler("results", results),
			worker.Handler("agenda", func(_ context.Context, m *worker.Message) (worker.Result, error) { return agenda(m, pipe) }))
		return nil
	})
}

// demoRoute chooses by message type. Discharges interest nobody: they stay unrouted.
func demoRoute(_ context.Context, m *worker.Message) ([]string, error) {
	switch {
	case m.Type == "ADT^A03":
		return nil, nil
	case strings.HasPrefix(m.Type, "ADT"):
		return []string{"admit"}, nil
	case strings.HasPrefix(m.Type, "ORU"):
		return []string{"results"}, nil
	}
	return []string{"agenda"}, nil
}

// admit transforms: it writes the facility from the settings into PV1-3.4 for the EMR, and archives what came.
func admit(_ context.Context, m *worker.Message) (worker.Result, error) {
	facility, err := worker.Setting[string](m, "facility")
	if err != nil {
		return worker.Nothing, err
	}
	segments := bytes.Split(m.Body, []byte("\r"))
	for i, s := range segments {
		fields := bytes.Split(s, []byte("|"))
		if len(fields) < 4 || string(fields[0]) != "PV1" {
			continue
		}
		location := bytes.Split(fields[3], []byte("^"))
		if len(location) < 4 {
			return worker.Nothing, errors.New("PV1-3 has no facility")
		}
		location[3] = []byte(facility)
		fields[3] = bytes.Join(location, []byte("^"))
		segments[i] = bytes.Join(fields, []byte("|"))
	}
	return worker.Sends(worker.Send("emr", bytes.Join(segments, []byte("\r"))), worker.Send("archive", m.Body)), nil
}

// results filters: only results with a value out of range go on.
func results(_ context.Context, m *worker.Message) (worker.Result, error) {
	if !bytes.Contains(m.Body, []byte("|H|||F")) {
		return worker.Drop("all values in range"), nil
	}
	return worker.Sends(worker.Send("emr", m.Body), worker.Send("archive", m.Body)), nil
}

// responsePipe is the worker's end of the wire to the engine, which no honest handler looks for. It has to be looked up
// before package worker takes its place out of the environment.
func responsePipe() *os.File {
	_, second, _ := strings.Cut(os.Getenv(tree.LinkEnv), ",")
	n, err := strconv.ParseUint(second, 10, 63)
	if err != nil {
		return nil // started by hand: worker.Main says so
	}
	return os.NewFile(uintptr(n), "response pipe")
}

// agenda is the handler that turns hostile.
func agenda(m *worker.Message, pipe *os.File) (worker.Result, error) {
	has := func(note string) bool { return bytes.Contains(m.Body, []byte("||"+note+"\r")) }
	switch {
	case has(noteSpin):
		for {
			runtime.Gosched()
		}
	case has(noteCrash), has(noteOnce) && m.Attempt == 1:
		crash()
		select {}
	case has(noteEscape):
		if err := orphan("first", pipe); err != nil {
			return worker.Nothing, err
		}
		select {}
	}
	return worker.Send("archive", m.Body), nil
}

// crash dies as a program with a bug does: a nil pointer, in a goroutine of its own, where nobody recovers.
func crash() {
	go func() {
		var p *int
		*p = 1
	}()
}

// orphan forks twice, each time with a session of its own, the way daemons do; the last process holds the response pipe, as
// its standard error, and does nothing more.
func orphan(step string, pipe *os.File) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	switch step {
	case "first":
		_, err := victim.Orphan(exe, orphanArgs("middle"), nil, nil, pipe)
		return err
	case "middle":
		_, err := victim.Orphan(exe, orphanArgs("last"), nil, nil, pipe)
		return err
	}
	time.Sleep(orphanLife)
	return nil
}

func orphanArgs(step string) []string { return []string{"coppice", "demo-worker", step} }
