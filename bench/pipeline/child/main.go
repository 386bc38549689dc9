// Command child is what the benchmark starts beside itself: the Go worker, and an engine whose memory is its own.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"coppice.dev/coppice/bench/pipeline/echo"
	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/engine"
	_ "coppice.dev/coppice/tree/shimhook"
	"coppice.dev/coppice/worker"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "worker":
		worker.Main(echo.Functions()...)
	case len(os.Args) == 3 && os.Args[1] == "engine":
		if err := serve(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "child: worker, or engine FOLDER; the benchmark starts it")
		os.Exit(2)
	}
}

// serve runs the engine of a folder until stdin ends. Its first line says where it listens; to each line of stdin it answers
// with the bytes of its heap that are in use, after a collection that also gives back what is free.
func serve(dir string) error {
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		return err
	}
	e, err := engine.Open(context.Background(), cfg, engine.Options{})
	if err != nil {
		return err
	}
	for _, in := range cfg.Inbounds {
		fmt.Print(e.Addr(in.Name), " ")
	}
	fmt.Println()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			debug.FreeOSMemory()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			fmt.Println(m.HeapInuse)
		}
	}()
	return e.Run(ctx)
}
