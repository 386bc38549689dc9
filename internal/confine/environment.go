package confine

import (
	"runtime"
	"slices"
	"strings"
)

// inherited are the names of the host's environment that reach a worker; everything else, secrets above all, does not.
func inherited() []string {
	names := []string{"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"}
	if runtime.GOOS == "windows" {
		// Without SYSTEMROOT a program there cannot even open a socket or seed its random numbers.
		names = append(names, "SYSTEMROOT", "SYSTEMDRIVE", "PATHEXT", "COMSPEC")
	}
	return names
}

// Environment builds the environment of a worker whose scratch folder is given: the allowed names of the host's
// environment, home and temporary folders that lead to the scratch folder, and then extra, as NAME=value. A name is in it
// once, and the last one given counts: of two, C and Go would take the first, and a shell the second.
func Environment(host []string, scratch string, extra ...string) []string {
	var env []string
	set := func(entry string) {
		name, _, _ := strings.Cut(entry, "=")
		env = slices.DeleteFunc(env, func(old string) bool {
			have, _, _ := strings.Cut(old, "=")
			return sameName(have, name)
		})
		env = append(env, entry)
	}
	for _, entry := range host {
		name, _, ok := strings.Cut(entry, "=")
		if ok && slices.ContainsFunc(inherited(), func(allowed string) bool { return sameName(name, allowed) }) {
			set(entry)
		}
	}
	for _, name := range []string{"HOME", "TMPDIR", "TMP", "TEMP"} {
		set(name + "=" + scratch)
	}
	for _, entry := range extra {
		set(entry)
	}
	return env
}

func sameName(a, b string) bool {
	return a == b || runtime.GOOS == "windows" && strings.EqualFold(a, b)
}
