package victim

import (
	"os"
	"strconv"
)

// Cases lists the victims, for an observer that is this process: attackers spare it, and all that is above it.
func Cases() ([]Case, error) {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, err
	}
	spared := []string{namespace, strconv.Itoa(os.Getpid())}
	return []Case{
		{Name: "sleeper", Ready: 1, Holders: 1},
		// Settled when the process in the middle has gone, so that nothing leads back to the leader.
		{Name: "daemon", Ready: 2, Holders: 2},
		{Name: "setsid", Ready: 4, Holders: 4},
		{Name: "deaf", Ready: 1, Holders: 1},
		{Name: "stopped", Ready: 2, Holders: 2, State: 'T', Stays: true},
		{Name: "leaver"},
		{Name: "forker", Ready: 2},
		{Name: "hopper", Ready: 1},
		{Name: "wide", Args: []string{"300"}, Ready: 301, Holders: 301},
		{Name: "deep", Args: []string{"60"}, Ready: 60, Holders: 60},
		{Name: "zombies", Ready: 1, Holders: 1},
		{Name: "filler", Ready: 2, Tasks: 64},
		{Name: "leaderless", Ready: 1, Holders: 1},
		{Name: "nested", Ready: 5, Holders: 5},
		{Name: "adopter", Ready: 3, Holders: 3},
		{Name: "unbound", Ready: 4, Holders: 4},
		{Name: "scribbler", Ready: 2, Holders: 2},
		{Name: "captor", Ready: 2, Holders: 3},
		{Name: "mover", Ready: 3},
		{Name: "killer", Args: spared, Ready: 2, Attacks: true},
		{Name: "stopper", Args: spared, Ready: 2, Attacks: true},
		{Name: "tracer", Args: spared, Ready: 2, Attacks: true},
		{Name: "rewriter", Args: spared, Ready: 2, Attacks: true},
		{Name: "starver", Args: spared, Ready: 2, Attacks: true},
		{Name: "choker", Args: spared, Ready: 2, Attacks: true},
	}, nil
}
