package engine

import (
	"os"
	"path/filepath"
	"strings"
)

// again is this program executed as something else, if it is.
func again(args []string) {
	switch {
	case args[0] == "engine" && len(args) == 2:
		runChild(args[1])
	case args[0] == "worker":
		runWorker()
		os.Exit(0)
	}
}

// children lists the processes that this one has (proc_pid_children(5)).
func children() (list []string) {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, task := range tasks {
		pids, _ := os.ReadFile(task) // a thread may have ended
		for _, pid := range strings.Fields(string(pids)) {
			name, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			list = append(list, "process "+pid+" "+strings.TrimSpace(string(name)))
		}
	}
	return list
}
