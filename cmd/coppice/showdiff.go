package main

import (
	"bytes"
	"fmt"

	"coppice.dev/coppice/internal/bodydiff"
	"coppice.dev/coppice/internal/message"
)

// comparing says of the body of each delivery how it differs from what came.
type comparing struct {
	came  []byte
	diff  bool // show it, and do not only say whether
	color bool
	shown []message.Delivery // before this one
}

// text is what there is to say of a delivery that has a body. One that is the same as another's is compared once.
func (c *comparing) text(d message.Delivery) string {
	p := &painter{color: c.color}
	size := fmt.Sprintf("  body      %d bytes", len(d.Body))
	if c.asItCame(d) {
		p.line("%s, as it came", size)
		return p.b.String()
	}
	for _, before := range c.shown {
		if bytes.Equal(before.Body, d.Body) {
			p.line("%s, those of delivery %d", size, before.Number)
			return p.b.String()
		}
	}
	c.shown = append(c.shown, d)
	if !c.diff {
		p.line("%s", size)
		return p.b.String()
	}
	p.line("%s; what came is %s, and what was made of it is %s", size, p.in(red, "-"), p.in(green, "+"))
	p.diff("    ", bodydiff.Between(c.came, d.Body), linesShown, lineShown)
	return p.b.String()
}

// edited is how a message differs from the one that it sends again.
func edited(was, is []byte, color bool) string {
	p := &painter{color: color}
	if bytes.Equal(was, is) {
		p.line("  edited    not at all")
		return p.b.String()
	}
	p.line("  edited    what it was is %s, and what it is now is %s", p.in(red, "-"), p.in(green, "+"))
	p.diff("    ", bodydiff.Between(was, is), linesShown, lineShown)
	return p.b.String()
}

func (c *comparing) asItCame(d message.Delivery) bool { return bytes.Equal(c.came, d.Body) }

// json is the same for machines: whether it is as it came, and if not, how it differs.
func (c *comparing) json(d message.Delivery) (same *bool, diff []string) {
	if d.Body == nil {
		return nil, nil
	}
	as := c.asItCame(d)
	if c.diff && !as {
		diff = diffJSON(c.came, d.Body)
	}
	return &as, diff
}
