// Package sandbox runs untrusted code behind one call, Pool.Dispatch. The code is in a worker process of its own, with
// all the processes that it may start; it gets one message at a time over a strict protocol (package wire) and gives one
// answer. A worker that crashes, overruns its deadline or breaks the protocol is cut down with its whole process tree
// (package tree), proved gone, and grown again for the next dispatch.
//
// Three questions decide what an error means, and Blame answers them: the message's fault leaves the worker alive, the
// worker's fault has cut it, and nobody's fault means that the dispatch may simply be made again, since the message did
// not reach the code.
//
// A program that calls New imports the shim in its main package:
//
//	import _ "coppice.dev/coppice/tree/shimhook"
//
// Without it, trees on Linux have level group alone, which a process that calls setsid escapes; a Spec that demands a
// better Level is then refused. Elsewhere the import changes nothing.
//
// A Pool has workers of one spec. A session is one worker's life, from its start to the proof that it is gone: a pool gives each
// dispatch one that rests, or a standby, or starts one. What a worker uses too much of ends it (Limits), and what cannot boot is
// tried again after a while (Held). Spec.Exec makes any program a worker for one message; Spec.Functions calls Go functions in
// this process, for code that is trusted.
//
// Nothing here is global, and pools are independent of each other.
package sandbox
