// Package shimhook lets a program be the shim of the trees that it starts. Import it blank, from main:
//
//	import _ "coppice.dev/coppice/tree/shimhook"
//
// Its init runs early, since it depends on little. If an engine executed this program again to be a shim, the init never
// returns, and nothing else of the program runs. Otherwise it notes that the program has the hook and costs one look at
// the environment. Without it, package tree never executes the program again: on Linux only the process group is left,
// unless tree.Spec.Shim names another binary that has it.
package shimhook

import "coppice.dev/coppice/internal/shim"

func init() { shim.Hook() }
