package config

import (
	"fmt"
	"net"
	"strconv"
)

// check looks at what no key can tell by itself: names that point at one another, and connections that would collide.
func (r *reader) check() {
	r.checkPresence()
	r.checkNames()
	for _, kind := range []string{"inbound", "handler", "outbound"} {
		r.checkWas(kind)
	}
	r.checkReachable()
	r.checkListeners()
	r.checkLoops()
	r.checkFolders()
	r.checkRetries()
	r.checkDuplicates()
	r.checkMemory()
}

func (r *reader) checkPresence() {
	root := r.cfg.root
	if n := root.kids["inbound"]; n == nil || n.kind == aTable && len(n.names) == 0 {
		r.report(root.at, []string{"inbound"}, "add a table [inbound.NAME]", "no inbound is declared")
	}
	if n := root.kids["handler"]; n == nil || n.kind == aTable && len(n.names) == 0 {
		r.report(root.at, []string{"handler"}, "add a table [handler.NAME]", "no handler is declared")
	}
}

// checkNames looks at every name in an array that stands for another table.
func (r *reader) checkNames() {
	r.checkArrays("inbound", "handlers", "handler", "name a handler, or give a router instead")
	r.checkArrays("handler", "to", "outbound", "")
}

// checkArrays looks at the arrays called name in the tables of one kind: they may name tables of another kind alone.
// A hint says that they may not be empty.
func (r *reader) checkArrays(from, name, to, empty string) {
	known := r.cfg.root.kids[to]
	if known == nil {
		known = newTable(Pos{}, Pos{})
	}
	if known.kind != aTable {
		return // reported, and no name can be told
	}
	for _, each := range r.tables(from) {
		array := each.node.kids[name]
		if array == nil || array.kind != anArray {
			continue
		}
		if len(array.elems) == 0 && empty != "" {
			r.report(array.at, []string{from, each.name, name}, empty, "%s is empty", name)
		}
		for _, e := range array.elems {
			if e.kind != aString || known.kids[e.text] != nil {
				continue
			}
			hint := fmt.Sprintf("declare it as [%s.NAME]", to)
			if near := closest(e.text, known.names); near != "" && !e.expanded() {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			r.report(e.at, []string{from, each.name, name}, hint, "there is no %s %s", to, show(e.source, `"`))
		}
	}
}

// checkWas looks at the former names of one kind: work belongs to one name, so none of them is another's, now or before.
func (r *reader) checkWas(kind string) {
	owner := map[string]string{} // of a former name
	for _, each := range r.tables(kind) {
		was := each.node.kids["was"]
		if was == nil || was.kind != anArray {
			continue
		}
		for _, e := range was.elems {
			path := []string{kind, each.name, "was"}
			now := r.cfg.root.kids[kind].kids[e.text]
			switch {
			case e.kind != aString:
			case now != nil:
				r.report(e.at, path, "the work that waits for it is its own", "%s %s is declared, too", kind, show(e.source, `"`))
			case owner[e.text] == each.name: // said already
			case owner[e.text] != "":
				r.report(e.at, path, "leave it in one of them", "%s was %s, and so was %s", title([]string{kind, owner[e.text]}),
					show(e.source, `"`), title([]string{kind, each.name}))
			case !validName(e.text):
				r.report(e.at, path, nameHint, "%s cannot have been the name of anything", show(e.source, `"`))
			default:
				owner[e.text] = each.name
			}
		}
	}
}

type namedNode struct {
	name string
	node *node
}

// tables returns the tables of one kind ("inbound") in file order.
func (r *reader) tables(kind string) []namedNode {
	var all []namedNode
	if n := r.cfg.root.kids[kind]; n != nil && n.kind == aTable {
		for _, name := range n.names {
			if n.kids[name].kind == aTable {
				all = append(all, namedNode{name, n.kids[name]})
			}
		}
	}
	return all
}

// checkReachable reports handlers that nothing can ever choose. A router may choose any, and so may a name that could
// not be made out.
func (r *reader) checkReachable() {
	chosen := map[string]bool{}
	for _, in := range r.tables("inbound") {
		if in.node.kids["router"] != nil {
			return
		}
		if array := in.node.kids["handlers"]; array != nil {
			for _, e := range array.elems {
				if r.broken[e.at] {
					return
				}
				chosen[e.text] = true
			}
		}
	}
	for _, h := range r.tables("handler") {
		if !chosen[h.name] {
			r.report(h.node.at, []string{"handler", h.name}, "name it in the handlers of an inbound, or give an inbound a router",
				"handler %s can never run", show(h.name, `"`))
		}
	}
}

// checkListeners reports two inbounds that want one port.
func (r *reader) checkListeners() {
	for i, in := range r.cfg.Inbounds {
		address, path := in.listener()
		for _, before := range r.cfg.Inbounds[:i] {
			if taken, _ := before.listener(); collide(address, taken) {
				r.report(r.cfg.Pos(path...), path, "",
					"%s listens on the address of %s already", title(path[:2]), title([]string{"inbound", before.Name}))
			}
		}
	}
}

// listener is where an inbound listens, and the path of the key that says so; empty for one that does not.
func (in Inbound) listener() (address string, path []string) {
	switch {
	case in.MLLP != nil:
		return in.MLLP.Listen, []string{"inbound", in.Name, "mllp", "listen"}
	case in.HTTP != nil:
		return in.HTTP.Listen, []string{"inbound", in.Name, "http", "listen"}
	}
	return "", nil
}

// collide says whether two addresses cannot both be listened on. Host names are compared as they are written.
func collide(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	numberA, _ := strconv.Atoi(portA)
	numberB, _ := strconv.Atoi(portB)
	if errA != nil || errB != nil || numberA != numberB || numberA == 0 {
		return false
	}
	return hostA == hostB || anyHost(hostA) || anyHost(hostB)
}

func anyHost(host string) bool { return host == "" || net.ParseIP(host).IsUnspecified() }

// checkFolders reports folders that would feed the engine with its own files, or that two connections would fight over.
// Paths are compared as they are written; links are not followed.
func (r *reader) checkFolders() {
	for i, in := range r.cfg.Inbounds {
		if in.File != nil {
			r.checkInFolder(i, in)
		}
	}
	for i, out := range r.cfg.Outbounds {
		for _, before := range r.cfg.Outbounds[:i] {
			if out.File != nil && before.File != nil && *out.File == *before.File && out.File.Dir != "" {
				path := []string{"outbound", out.Name, "file", "dir"}
				r.report(r.cfg.Pos(path...), path, "give one another folder, or another name",
					"%s writes the same files as %s", title(path[:2]), title([]string{"outbound", before.Name}))
			}
		}
	}
}

func (r *reader) checkInFolder(i int, in Inbound) {
	path := []string{"inbound", in.Name, "file", "dir"}
	move := []string{"inbound", in.Name, "file", "move_to"}
	for j, other := range r.cfg.Inbounds {
		if other.File == nil || other.File.Dir == "" {
			continue
		}
		if other.File.Dir == in.File.MoveTo {
			r.report(r.cfg.Pos(move...), move, "move them to a folder that no inbound reads",
				"%s would move its files into the folder that %s reads", title(path[:2]), title([]string{"inbound", other.Name}))
		}
		if j < i && other.File.Dir == in.File.Dir && other.File.Pattern == in.File.Pattern {
			r.report(r.cfg.Pos(path...), path, "give one another folder, or another pattern",
				"%s reads the same files as %s", title(path[:2]), title([]string{"inbound", other.Name}))
		}
	}
	for _, out := range r.cfg.Outbounds {
		if out.File != nil && out.File.Dir == in.File.Dir && in.File.Dir != "" {
			r.report(r.cfg.Pos(path...), path, "give one of them another folder",
				"%s reads the folder that %s writes to: a loop", title(path[:2]), title([]string{"outbound", out.Name}))
		}
	}
}

func (r *reader) checkRetries() {
	for _, out := range r.cfg.Outbounds {
		if out.Retry.First > out.Retry.Max {
			path := []string{"outbound", out.Name, "retry", "first"}
			hint := ""
			if r.cfg.root.child("outbound").child(out.Name).child("retry").child("max") == nil {
				hint = "max is " + formatDuration(out.Retry.Max) + " where it is left out"
			}
			r.report(r.cfg.Pos(path...), path, hint, "retry.first is longer than retry.max")
		}
	}
}

// checkDuplicates reports an inbound that is to remember messages for longer than the store keeps them.
func (r *reader) checkDuplicates() {
	for _, in := range r.cfg.Inbounds {
		if kept := r.cfg.Store.Retention.Done; in.Duplicates != nil && kept > 0 && in.Duplicates.Within > kept {
			path := []string{"inbound", in.Name, "duplicates", "within"}
			r.report(r.cfg.Pos(path...), path, "store.retention.done is "+formatDuration(kept),
				"duplicates.within is longer than the store keeps messages that are done")
		}
	}
}

// MaxMessage is how large a message of an inbound may be, in bytes.
func (in Inbound) MaxMessage() int64 {
	switch {
	case in.MLLP != nil:
		return in.MLLP.MaxMessage
	case in.HTTP != nil:
		return in.HTTP.MaxMessage
	case in.File != nil:
		return in.File.MaxMessage
	}
	return 0
}

// LargestMessage is how large a message of any inbound may be, in bytes.
func (c *Config) LargestMessage() (most int64) {
	for _, in := range c.Inbounds {
		most = max(most, in.MaxMessage())
	}
	return most
}

// checkMemory reports a memory for bodies in which the largest message would have no room beside others.
func (r *reader) checkMemory() {
	least := LeastBodies * r.cfg.LargestMessage()
	if n := r.cfg.root.child("memory").child("bodies"); n != nil && r.cfg.Memory.Bodies > 0 && r.cfg.Memory.Bodies < least {
		path := []string{"memory", "bodies"}
		r.report(n.at, path, "write at least "+formatSize(least)+", or a smaller max_message in the inbound that takes the largest messages",
			"memory.bodies is less than %d times the largest max_message", LeastBodies)
	}
}
