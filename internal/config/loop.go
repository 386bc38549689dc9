package config

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// checkLoops reports messages that would come back for ever: an outbound that sends to an inbound of the same file, whose
// handlers, without a router that could choose others, lead to the outbound again. Folders are checkFolders' work.
func (r *reader) checkLoops() {
	for _, l := range r.cfg.loops(false, loopback) {
		r.report(r.cfg.Pos(l.place...), l.place, "send somewhere else, or give the inbound a router that ends it", "%s", l)
	}
}

// Warnings are what is allowed and hardly meant. own says whether a host's name or address is this machine's, besides the
// loopback's; nil says that none is.
func (c *Config) Warnings(own func(host string) bool) []*Error {
	var out []*Error
	here := func(host string) bool { return loopback(host) || own != nil && own(host) }
	certain := c.loops(false, loopback)
	for _, l := range c.loops(true, here) {
		if !slices.ContainsFunc(certain, func(o loop) bool { return slices.Equal(o.place, l.place) }) {
			out = append(out, c.Errorf(l.place, "does something on the way see to it that a message ends there at last?", "%s", l))
		}
	}
	for _, o := range c.Outbounds {
		if !slices.ContainsFunc(c.Handlers, func(h Handler) bool { return slices.Contains(h.To, o.Name) }) {
			out = append(out, c.Errorf([]string{"outbound", o.Name}, "name it in the to of a handler, or take it out",
				"nothing is ever sent to outbound %s: no handler names it", show(o.Name, `"`)))
		}
	}
	return out
}

// loop is a way from an outbound back to it.
type loop struct {
	place []string // the address where it closes
	way   []string
}

func (l loop) String() string { return "a loop of messages: " + strings.Join(l.way, " -> ") }

// loops finds, for each outbound that sends to an inbound of this configuration, a way from there back to it. A router may choose
// any handler; without routers only inbounds with handlers of their own are gone through. here says which hosts are this machine.
func (c *Config) loops(routers bool, here func(string) bool) (out []loop) {
	for _, o := range c.Outbounds {
		w := walk{cfg: c, routers: routers, here: here, goal: o.Name, seen: map[string]bool{}}
		if way := w.beyond(o); way != nil {
			out = append(out, loop{[]string{"outbound", o.Name, "mllp", "connect"}, append([]string{"outbound " + o.Name}, way...)})
		}
	}
	return out
}

type walk struct {
	cfg     *Config
	routers bool
	here    func(string) bool
	goal    string          // an outbound
	seen    map[string]bool // inbounds that have been gone through
}

// beyond is the way from an outbound to the goal; nil if there is none.
func (w *walk) beyond(o Outbound) []string {
	for _, in := range w.cfg.Inbounds {
		if o.MLLP == nil || in.MLLP == nil || w.seen[in.Name] || in.Router != nil && !w.routers || !reaches(o.MLLP.Connect, in.MLLP.Listen, w.here) {
			continue
		}
		w.seen[in.Name] = true
		for _, h := range w.cfg.Handlers {
			if in.Router == nil && !slices.Contains(in.Handlers, h.Name) {
				continue
			}
			for _, next := range w.cfg.Outbounds {
				if !slices.Contains(h.To, next.Name) {
					continue
				}
				step := []string{"inbound " + in.Name, "handler " + h.Name, "outbound " + next.Name}
				if next.Name == w.goal {
					return step
				}
				if way := w.beyond(next); way != nil {
					return append(step, way...)
				}
			}
		}
	}
	return nil
}

// reaches says whether who connects to one address gets to who listens on the other.
func reaches(connect, listen string, here func(string) bool) bool {
	to, toPort, errTo := net.SplitHostPort(connect)
	at, atPort, errAt := net.SplitHostPort(listen)
	toNumber, _ := strconv.Atoi(toPort)
	atNumber, _ := strconv.Atoi(atPort)
	switch {
	case errTo != nil, errAt != nil, toNumber != atNumber, toNumber == 0:
		return false
	case strings.EqualFold(to, at):
		return true
	case anyHost(at):
		return here(to) || anyHost(to)
	}
	// localhost is an address of the loopback, and two different addresses of it are two different places.
	return loopback(to) && loopback(at) && (net.ParseIP(to) == nil || net.ParseIP(at) == nil)
}

func loopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}
