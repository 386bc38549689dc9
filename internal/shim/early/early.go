// Package early knows the limit of descriptors that this process was started with.
//
// Package syscall raises the soft limit to the hard one, less one, in its init, and gives its own children the first one
// back; what forks by itself has to do that, too. It keeps the value to itself. This package reads it before that: it
// imports nothing, so that it is initialised first of all packages but runtime's (of those that can be, Go takes the one
// that is first by its path). Hence the system call in assembler.
package early

var files, known = look()

// Files is the limit of descriptors, soft and hard, that this process had when it was started; false where that is not known.
func Files() (soft, hard uint64, ok bool) { return files[0], files[1], known }
