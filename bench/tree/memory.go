package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/tree"
)

// memory measures the pages that a shim has for itself alone.
func memory() error {
	fmt.Println("\n## Memory that containment adds per worker")
	fmt.Println("\nUnique pages (Private_Clean and Private_Dirty of smaps_rollup) of the shim, beside a worker that sleeps, while another tree\n" +
		"of the same kind lives.")
	kinds := map[string]string{"the engine's own binary": ""}
	if small := smallShim(); small != "" {
		defer os.Remove(small)
		kinds["a separate shim"] = small
	}
	for name, path := range kinds {
		for _, rung := range tree.Rungs() {
			if rung == "group" {
				continue
			}
			var trees []*tree.Tree
			for range 2 {
				t, err := tree.Start(context.Background(), tree.Spec{Path: "/bin/sleep", Args: []string{"sleep", "20"}, Rung: rung, Shim: path})
				if err != nil {
					break
				}
				defer t.Kill(context.Background(), "bench")
				trees = append(trees, t)
			}
			if len(trees) < 2 {
				continue
			}
			m, err := trees[1].Members()
			if err != nil || len(m) != 1 {
				return fmt.Errorf("members %v, %v", m, err)
			}
			p, _ := shim.Read(m[0].Parent)
			unique, err := private(p.Pid)
			if err != nil {
				fmt.Printf("  %-26s %-12s %v\n", name, rung, err)
				continue
			}
			fmt.Printf("  %-26s %-12s %5.1f MB in %d threads\n", name, rung, float64(unique)/1e6, p.Threads)
		}
	}
	return nil
}

func private(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var sum int64
	s := bufio.NewScanner(f)
	for s.Scan() {
		var kb int64
		if strings.HasPrefix(s.Text(), "Private_") {
			fmt.Sscanf(strings.SplitN(s.Text(), ":", 2)[1], "%d", &kb)
			sum += kb << 10
		}
	}
	return sum, s.Err()
}
