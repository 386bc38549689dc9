// Command shim is the smallest binary that can be a tree's shim, for tree.Spec.Shim: a separate one costs less memory than
// a large engine's own, executed again. It does nothing else.
package main

import (
	"os"

	_ "coppice.dev/coppice/tree/shimhook"
)

func main() {
	os.Stderr.WriteString("this is the shim of Coppice's trees: an engine executes it, nobody else\n")
	os.Exit(2)
}
