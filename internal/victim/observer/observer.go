// Package observer sees from outside who is left of a tree of victims: by the pipe that all of them hold, and by what
// /proc says of those who hold it. It is for tests and for the comparison with other tools, and is there on Linux alone.
//
// A process is known by its pid together with its start time, never by the pid alone.
package observer
