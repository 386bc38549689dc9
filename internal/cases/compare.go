package cases

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"coppice.dev/coppice/internal/message"
)

// Difference is one thing that is not as it was expected.
type Difference struct {
	What      string // "disposition", "handler admit", "tag mrn", "admit -> emr"
	Want, Got string
	Bodies    *Bodies // what was sent, if both were
}

// Bodies are two that differ.
type Bodies struct{ Want, Got []byte }

// Compare lists how a result differs from the one that was expected. What the handlers are told is not compared.
func Compare(want, got Result) []Difference {
	c := &comparison{}
	c.words("disposition", string(want.Disposition), string(got.Disposition))
	c.words("router", orEmpty(want.Router), orEmpty(got.Router))
	c.words("handlers", strings.Join(want.names(), ", "), strings.Join(got.names(), ", "))
	for _, w := range want.Handlers {
		if i := slices.Index(got.names(), w.Handler); i >= 0 {
			c.words("handler "+w.Handler, w.String(), got.Handlers[i].String())
		}
	}
	c.tags(want.Tags, got.Tags)
	c.sends(want, got)
	return c.out
}

type comparison struct{ out []Difference }

func (c *comparison) words(what, want, got string) {
	if want != got {
		c.out = append(c.out, Difference{What: what, Want: want, Got: got})
	}
}

func (r Result) names() (out []string) {
	for _, p := range r.Handlers {
		out = append(out, p.Handler)
	}
	return out
}

func orEmpty(p *Part) string {
	if p == nil {
		return ""
	}
	return p.String()
}

// String is how the part ended, as far as it can be expected.
func (p Part) String() string {
	switch {
	case p.State == message.RunSent:
		return string(p.State)
	case p.Measured():
		return fmt.Sprintf("%s, %s", p.State, p.Fault)
	}
	return fmt.Sprintf("%s: %s", p.State, p.Reason)
}

func (c *comparison) tags(want, got map[string]string) {
	all := maps.Clone(got)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, want)
	show := func(tags map[string]string, name string) string {
		if value, ok := tags[name]; ok {
			return fmt.Sprintf("%q", value)
		}
		return "none"
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c.words("tag "+name, show(want, name), show(got, name))
	}
}

// sends compares what went where. Of two handlers with other sends to one outbound each is told by itself.
func (c *comparison) sends(want, got Result) {
	for _, name := range union(want.names(), got.names()) {
		w, g := want.sendsOf(name), got.sendsOf(name)
		var outbounds [2][]string
		for i, sends := range [][]message.Send{w, g} {
			for _, s := range sends {
				outbounds[i] = append(outbounds[i], s.To)
			}
		}
		for _, to := range slices.Compact(slices.Sorted(slices.Values(union(outbounds[0], outbounds[1])))) {
			c.bodies(name, to, bodiesFor(w, to), bodiesFor(g, to))
		}
	}
}

// bodiesFor are the bodies for one outbound.
func bodiesFor(sends []message.Send, to string) (out [][]byte) {
	for _, s := range sends {
		if s.To == to {
			out = append(out, s.Body)
		}
	}
	return out
}

func (c *comparison) bodies(handler, to string, want, got [][]byte) {
	for i := range max(len(want), len(got)) {
		what := Flow(handler, to, i+1)
		switch {
		case i >= len(got):
			c.words(what, size(want[i]), "nothing")
		case i >= len(want):
			c.words(what, "nothing", size(got[i]))
		case !bytes.Equal(want[i], got[i]):
			c.out = append(c.out, Difference{What: what, Want: size(want[i]), Got: size(got[i]), Bodies: &Bodies{want[i], got[i]}})
		}
	}
}

// Flow names the nth body that a handler sends to an outbound.
func Flow(handler, to string, n int) string {
	if n > 1 {
		return fmt.Sprintf("%s -> %s (%d)", handler, to, n)
	}
	return handler + " -> " + to
}

func size(b []byte) string {
	if len(b) == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", len(b))
}

func (r Result) sendsOf(handler string) []message.Send {
	for _, p := range r.Handlers {
		if p.Handler == handler {
			return p.Sends
		}
	}
	return nil
}

// union keeps the order of a, and adds what b has more.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
