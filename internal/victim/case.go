package victim

// Case is one victim as it is run, and what an observer can wait for before it acts.
type Case struct {
	Name string
	Args []string
	// Ready is how many of its processes say Ready.
	Ready int
	// Holders is how many processes hold the witness once it has settled; 0 if that is not fixed.
	Holders int
	// State is the state in /proc that each of them has come to by then; 0 for any.
	State byte
	// Stays: its leader does not end when standard input does.
	Stays bool
	// Attacks: it attacks those above it, up to the one that watches, and may be over, or have ended them, at any moment.
	Attacks bool
	// Tasks is the limit of tasks that it is there to exhaust; 0 for none.
	Tasks uint64
}
