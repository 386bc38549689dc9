// Command child is what stands at the far end of most round trips: a program of its own, as small as a user's, where
// the benchmark's own binary would spend its start on the peers.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"coppice.dev/coppice/worker"
)

func main() {
	if len(os.Args) != 2 {
		refuse()
	}
	switch os.Args[1] {
	case "bare":
		bare()
	case "once":
		io.Copy(os.Stdout, os.Stdin)
	case "worker":
		end := profile()
		worker.Main(worker.Handler("echo", func(_ context.Context, m *worker.Message) (worker.Result, error) {
			return worker.Send("out", m.Body), nil
		}), worker.Handler("end profile", func(context.Context, *worker.Message) (worker.Result, error) {
			end()
			return worker.Nothing, nil
		}), worker.Handler("exit", func(context.Context, *worker.Message) (worker.Result, error) {
			os.Exit(3)
			return worker.Nothing, nil
		}), worker.Handler("hang", func(context.Context, *worker.Message) (worker.Result, error) {
			time.Sleep(time.Minute) // whatever the deadline
			return worker.Nothing, nil
		}))
	default:
		refuse()
	}
}

func refuse() {
	fmt.Fprintln(os.Stderr, "child: bare, once or worker; roundtrip starts it")
	os.Exit(2)
}

// bare is the floor: a length and so many bytes in, the same out. Nothing is allocated after the largest.
func bare() {
	const most = 64 << 20
	r := bufio.NewReaderSize(os.Stdin, 64<<10)
	for frame := make([]byte, 4); ; {
		if _, err := io.ReadFull(r, frame[:4]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint32(frame))
		if size > most {
			os.Exit(1)
		}
		if len(frame) < 4+size {
			frame = append(frame, make([]byte, 4+size-len(frame))...)
		}
		if _, err := io.ReadFull(r, frame[4:4+size]); err != nil {
			os.Exit(1)
		}
		if _, err := os.Stdout.Write(frame[:4+size]); err != nil {
			os.Exit(1)
		}
	}
}

// profile writes a profile of this worker where the environment says, and returns what ends it.
func profile() (end func()) {
	path := os.Getenv("COPPICE_BENCH_PROFILE")
	if path == "" {
		return func() {}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		panic(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		panic(err)
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}
}
