// Package config reads coppice.toml strictly: every key is known or refused, every value is checked, and every problem
// is reported at once with its line and column. What it returns is complete: defaults are filled in, paths are
// absolute, names that point at one another exist.
//
// The keys are declared in one table (schema.go), which drives the check for unknown keys, the defaults, the ranges and
// the reference in docs/CONFIGURATION.md.
//
// Secrets: ${NAME} inside a string stands for an environment variable. No error of this package repeats what such a
// variable holds; a value is shown as it is written in the file.
package config

import (
	"net/netip"
	"time"
)

// Config is one coppice.toml, checked. It is not changed after Parse returns it, so any number of goroutines may read it.
type Config struct {
	File    string // as it was given; it begins every error
	Dir     string // absolute and without links: the folder that File is in, against which relative paths are resolved
	Version int    // always 1

	Store   Store
	Memory  Memory
	Sandbox Sandbox
	Alerts  *Alerts // nil: nobody is told
	// In file order each.
	Inbounds  []Inbound
	Handlers  []Handler
	Outbounds []Outbound

	root *node // where everything was written; never nil
}

// Store says where the durable queue is, and what it keeps.
type Store struct {
	Path      string // absolute
	MinFree   int64  // bytes; with less room on its disk nothing is received
	Retention Retention
}

// Memory is what the engine may keep in memory.
type Memory struct {
	Bodies int64 // bytes of all bodies together; at least LeastBodies times the largest max_message
}

// LeastBodies is how many of the largest messages the memory for bodies has room for at least.
const LeastBodies = 4

// Retention is how long messages are kept once they have ended. Zero is for ever.
type Retention struct {
	Done time.Duration // PROCESSED, FILTERED and UNROUTED
	Dead time.Duration // ERROR
}

// Alerts says who is told when something waits. Command, Webhook or both are set.
type Alerts struct {
	Command []string // as in Ref
	Webhook string
	Oldest  time.Duration // how long a message may wait
	Repeat  time.Duration // how often an alert that lasts is told again
}

// Sandbox says how the workers run.
type Sandbox struct {
	Mode         string        // "subprocess"
	Level        string        // the least containment that will do: "atomic", "tracked", "group" or "direct"; empty: the best there is
	Python       string        // the interpreter of Python workers: a name to look up on PATH, or an absolute path
	Node         string        // the same for Node workers
	StartTimeout time.Duration // from start to ready, of one worker
}

// Inbound is a connection that messages come in by. Exactly one of MLLP, HTTP and File is set, and exactly one of Router
// and Handlers.
type Inbound struct {
	Name     string
	MLLP     *MLLPIn
	HTTP     *HTTPIn
	File     *FileIn
	Router   *Ref     // asks a worker which handlers get a message
	Handlers []string // these get every message; declared, no duplicates
	// HoldAfter is at how many failures of the router in a row it is held; 0: never.
	HoldAfter  int
	Split      string      // "hl7"; empty: a batch is one message
	Duplicates *Duplicates // nil: every message is processed
	Was        []string    // names that it had before
}

// Duplicates says which messages are acknowledged without being processed.
type Duplicates struct {
	Key    string        // "MSH-10"
	Within time.Duration // how long a message is remembered
}

// MLLPIn accepts MLLP over TCP.
type MLLPIn struct {
	Listen     string         // host:port; the host may be empty (all interfaces), port 0 is any free one
	MaxMessage int64          // bytes
	Ack        string         // "original", "enhanced" or "none"
	Peers      []netip.Prefix // who may connect; nil: everybody
	TLS        *TLSIn         // nil: none
}

// HTTPIn accepts messages as bodies of HTTP requests.
type HTTPIn struct {
	Listen     string         // as in MLLPIn
	Path       string         // the one that takes messages, decoded
	MaxMessage int64          // bytes
	AuthHeader string         // "Name: value", which a request must have; empty: none. A secret
	Peers      []netip.Prefix // as in MLLPIn
	TLS        *TLSIn         // nil: none
}

// TLSIn says what a listener shows. Whether the files are there is for the connection to say.
type TLSIn struct {
	Cert, Key string // absolute
	ClientCA  string // absolute; empty: senders need no certificate
}

// FileIn picks up files from a folder. Its subfolders are not searched.
type FileIn struct {
	Dir        string        // absolute
	Pattern    string        // of the file's name, as path.Match takes it
	Poll       time.Duration // between two looks at the folder
	Stable     time.Duration // a file that did not change for this long is whole
	MaxMessage int64         // bytes
	After      string        // "move" or "delete", once the message is committed
	MoveTo     string        // absolute; empty with After "delete"
}

// Ref names a function that a worker offers. Either File or Command is set.
type Ref struct {
	File    string   // a Python or JavaScript file, relative to Dir, with slashes; it exists
	Name    string   // what the worker calls it
	Command []string // a program that speaks the worker protocol; Command[0] is absolute or without a folder (PATH)
}

// Handler is a function that transforms messages. Exactly one of Run and Command is set.
type Handler struct {
	Name     string
	Run      *Ref           // File and Name; never Command
	Command  []string       // as in Ref; the program offers the handler under Name
	Protocol string         // "wire" or "exec"
	To       []string       // outbounds that it may name; declared, no duplicates, may be empty
	Deadline time.Duration  // of one attempt
	Settings map[string]any // string, int64, float64 (finite) or bool; never nil
	Attempts int            // how many workers a message may cost before it is poison, 1 to 10
	Per      string         // "handler", "inbound" or "message"
	Standbys int            // workers started ahead
	Limits   Limits
	// HoldAfter is at how many failures in a row it is held; 0: never.
	HoldAfter int
	Was       []string // names that it had before
}

// Limits are what a handler's worker may use, with all that it starts. Zero says that there is none.
type Limits struct {
	CPU     time.Duration // of one attempt
	IdleCPU time.Duration // between messages
	Output  int64         // bytes, from one message to the next
	Memory  int64         // bytes that it may keep
	Idle    time.Duration // that it may wait for a message
}

// Outbound is a connection that messages leave by. Exactly one of MLLP, HTTP and File is set.
type Outbound struct {
	Name  string
	MLLP  *MLLPOut
	HTTP  *HTTPOut
	File  *FileOut
	Order string // "strict" or "none"
	// Parallel is how many deliveries may be out at once; with Order "strict" one.
	Parallel int
	Retry    Retry
	Was      []string // names that it had before
}

// MLLPOut sends MLLP over TCP.
type MLLPOut struct {
	Connect    string        // host:port
	AckTimeout time.Duration // from the end of a send to its acknowledgement
	Connection string        // "persistent" or "per_message"
	TLS        *TLSOut       // nil: none
}

// HTTPOut sends each delivery as the body of an HTTP request.
type HTTPOut struct {
	URL         string // http or https, with a host
	Method      string // "POST" or "PUT"
	ContentType string
	Headers     map[string]string // by canonical name; never nil. Secrets
	Timeout     time.Duration     // of a request and its answer
	Connection  string            // as in MLLPOut
	TLS         *TLSOut           // nil: with https as the zero value
}

// TLSOut says how a receiver is known, and what it is shown.
type TLSOut struct {
	CA         string // absolute; empty: the roots of the system
	Cert, Key  string // absolute; both empty: nothing is shown
	ServerName string // empty: the host that is connected to
}

// FileOut writes each delivery to a file of its own.
type FileOut struct {
	Dir  string // absolute
	Name string // a template; {id} stands for the delivery's id and is always in it
}

// Retry says what happens when a delivery does not succeed.
type Retry struct {
	First    time.Duration // wait after the first failure; it doubles with each one more
	Max      time.Duration // the longest wait, at least First
	Rejected int           // how often a receiver may say AE or CE before Then
	Then     string        // "dead_letter" or "hold"
}
