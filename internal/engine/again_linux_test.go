package engine

import "os"

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
