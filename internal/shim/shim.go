// Package shim is the small first process of a worker's tree, and the words in which an engine talks to it.
//
// The shim is the engine's own binary, executed again (or a separate one, named by tree.Spec.Shim): package shimhook,
// imported blank, calls Hook from its init, before anything else of the program runs. The engine starts it with the
// worker's descriptors and three of its own:
//
//	Trigger    a sealed memory file that says "be a shim"; an environment name alone would let a worker's
//	           environment turn any program that has the hook into one
//	Control    a stream socket: the spec comes in, what happens to the tree goes out
//	EngineFD   a pidfd of the engine, made before the shim was born: when it is readable, the engine is gone
//
// The shim executes the command only after it has seen the engine alive, and from then on cuts the tree when the
// engine dies, when it is told to, or when the command itself has ended. Its own exit code says nothing; the truth goes
// over the socket.
//
// The package imports low-level packages alone and keeps its init free, so that the hook costs a program that is no
// shim one look at its environment.
package shim

// Env is the name that tells the hook which descriptor the trigger is. The two others follow it.
const Env = "COPPICE_SHIM"

// Magic is what the trigger holds.
const Magic = "coppice shim 1\n"

// Mode is how the shim holds its tree.
type Mode byte

// The modes.
const (
	// InPIDNamespace: the shim is PID 1; its end is the end of all.
	InPIDNamespace Mode = 1
	// AsSubreaper: orphans come back to the shim, which kills in a loop until it has no child left.
	AsSubreaper Mode = 2
	// InCgroup: the same, and the command is born in a cgroup of its own, which the shim kills first. Two descriptors
	// follow the shim's others: the cgroup's folder and its file cgroup.kill.
	InCgroup Mode = 3
)

// Spec is what the shim starts and how.
type Spec struct {
	Mode Mode
	Path string
	Args []string // with argv[0]
	Env  []string
	Dir  string // empty: the engine's
	// Files is how many descriptors the command gets, from 0 on.
	Files int
	// Terminal says that one more descriptor follows those: the terminal whose foreground the command's group becomes.
	Terminal bool
	// NewSession gives the command a session of its own, without a controlling terminal; otherwise it gets a process
	// group of its own.
	NewSession bool
	// NoNewPrivileges sets PR_SET_NO_NEW_PRIVS.
	NoNewPrivileges bool
	// DropCapabilities empties all five capability sets of the command.
	DropCapabilities bool
	// Guards are those that the command shall be held by; Must makes the start fail where one cannot be set.
	Guards Guards
	Must   bool
	// Carved are the folders, absolute, that GuardCgroup keeps the command from writing in: the mounts of cgroup2.
	Carved []string
	// Limits are set, soft and hard, as setrlimit(2) counts.
	Limits []Limit
}

// Guards are what keeps the command from what holds it.
type Guards byte

// The guards.
const (
	// GuardShim: a Landlock domain out of which it cannot signal or trace, so neither the shim nor the engine.
	GuardShim Guards = 1 << iota
	// GuardLimits: a filter that refuses prlimit(2) on others: by it, who has the same user could have the kernel kill the
	// shim for the CPU time that it uses.
	GuardLimits
	// GuardCgroup: a Landlock domain that cannot write below a mount of cgroup2, so not leave its cgroup.
	GuardCgroup
)

// Limit is one resource limit: its number on this system and its value.
type Limit struct {
	Resource uint32
	Value    uint64
}

// Event is one record from the shim, of a fixed size.
type Event struct {
	Kind Kind
	A, B uint64
	C, D uint64
}

// Kind names an event.
type Kind byte

// The events, in the order in which they can come.
const (
	Started Kind = 'S' // A: the command's pid, as the shim sees it, B: the Step of a guard that could not be set, C: its errno
	Failed  Kind = 'F' // A: the errno with which it could not be started, B: the Step that failed
	Stopped Kind = 'T' // A: the signal that has stopped the command; any number of times
	Exited  Kind = 'X' // A: wait status, B: user CPU in µs, C: system CPU in µs, D: most resident memory in KiB
	Empty   Kind = 'E' // the shim has no child left, and so no descendant
)

// Step is where a start failed.
type Step uint64

// The steps of a start.
const (
	StepSpec Step = iota + 1
	StepNamespace
	StepReap
	StepFork
	StepConfine
	StepLandlock
	StepSeccomp
	StepTerminal
	StepLimits
	StepDir
	StepExec
	StepLook
)

func (s Step) String() string {
	switch s {
	case StepSpec:
		return "reading the spec"
	case StepNamespace:
		return "making a user and a PID namespace"
	case StepReap:
		return "becoming the subreaper"
	case StepFork:
		return "forking the command"
	case StepConfine:
		return "giving up privileges"
	case StepLandlock:
		return "entering a Landlock domain"
	case StepSeccomp:
		return "setting a system-call filter"
	case StepTerminal:
		return "taking the terminal's foreground"
	case StepLimits:
		return "setting limits"
	case StepDir:
		return "entering the working folder"
	case StepExec:
		return "executing the command"
	case StepLook:
		return "looking for the processes of its own PID namespace in /proc"
	}
	return "an unknown step"
}

// EventSize is how many bytes an event takes on the socket.
const EventSize = 33

// Append appends the event's record.
func (e Event) Append(b []byte) []byte {
	b = append(b, byte(e.Kind))
	for _, n := range [...]uint64{e.A, e.B, e.C, e.D} {
		b = put64(b, n)
	}
	return b
}

// ParseEvent reads a record of EventSize bytes.
func ParseEvent(b []byte) Event {
	_ = b[EventSize-1]
	return Event{Kind: Kind(b[0]), A: get64(b[1:]), B: get64(b[9:]), C: get64(b[17:]), D: get64(b[25:])}
}

// The orders that an engine may send behind the spec, one byte each; Signal has the signal's number behind it.
const (
	OrderKill   = 'K'
	OrderSignal = 'G'
)

// maxSpec bounds a spec: arguments and environment have to fit execve(2)'s own limit anyway.
const maxSpec = 16 << 20

// Encode makes the spec's form on the socket: a length, then the fields in order.
func (s *Spec) Encode() ([]byte, bool) {
	b := make([]byte, 8, 4096)
	b = append(b, byte(s.Mode), flag(s.NewSession), flag(s.NoNewPrivileges), flag(s.DropCapabilities), flag(s.Terminal),
		byte(s.Guards), flag(s.Must))
	b = put64(b, uint64(s.Files))
	b = putString(b, s.Path)
	b = putString(b, s.Dir)
	for _, list := range [...][]string{s.Args, s.Env, s.Carved} {
		b = put64(b, uint64(len(list)))
		for _, v := range list {
			b = putString(b, v)
		}
	}
	b = put64(b, uint64(len(s.Limits)))
	for _, l := range s.Limits {
		b = put64(b, uint64(l.Resource))
		b = put64(b, l.Value)
	}
	put64(b[:0], uint64(len(b)-8))
	return b, len(b)-8 <= maxSpec
}

// decodeSpec reads what stands behind the length; false if it is not a spec.
func decodeSpec(b []byte) (s Spec, ok bool) {
	d := decoder{b: b}
	s.Mode = Mode(d.byte())
	s.NewSession, s.NoNewPrivileges, s.DropCapabilities, s.Terminal = d.byte() == 1, d.byte() == 1, d.byte() == 1, d.byte() == 1
	s.Guards, s.Must = Guards(d.byte()), d.byte() == 1
	s.Files = int(d.number())
	s.Path, s.Dir = d.string(), d.string()
	s.Args, s.Env, s.Carved = d.list(), d.list(), d.list()
	for n := d.number(); n > 0 && !d.bad; n-- {
		s.Limits = append(s.Limits, Limit{Resource: uint32(d.number()), Value: d.number()})
	}
	return s, !d.bad && len(d.b) == 0 && len(s.Args) > 0 && s.Mode >= InPIDNamespace && s.Mode <= InCgroup
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) number() uint64 {
	if b := d.take(8); b != nil {
		return get64(b)
	}
	return 0
}

func (d *decoder) string() string { return string(d.take(d.number())) }

func (d *decoder) list() []string {
	var out []string
	for n := d.number(); n > 0 && !d.bad; n-- {
		out = append(out, d.string())
	}
	return out
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func putString(b []byte, s string) []byte { return append(put64(b, uint64(len(s))), s...) }

func put64(b []byte, n uint64) []byte {
	return append(b, byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func get64(b []byte) uint64 {
	_ = b[7]
	return uint64(b[0])<<56 | uint64(b[1])<<48 | uint64(b[2])<<40 | uint64(b[3])<<32 |
		uint64(b[4])<<24 | uint64(b[5])<<16 | uint64(b[6])<<8 | uint64(b[7])
}
