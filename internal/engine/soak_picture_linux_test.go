package engine

import (
	"bytes"
	"fmt"
	"math"
	"time"
)

// Measures of the picture of a soak: a panel for each figure, over the messages that are done.
const (
	panelWidth, panelHeight = 760, 90
	panelLeft, panelGap     = 20, 46
	mostPoints              = 380 // of a line: half of its pixels
)

// drawSoak is the samples as SVG. Each point of a line is the highest of the samples that it stands for, so that no peak is lost.
func drawSoak(all []sample) []byte {
	var b bytes.Buffer
	panels := figures()
	last := all[len(all)-1]
	height := 50 + len(panels)*(panelHeight+panelGap)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">
<rect width="100%%" height="100%%" fill="white"/>
<text x="%d" y="26" font-size="16">%d messages, %d workers cut, %v</text>
`, panelWidth+2*panelLeft, height, panelLeft, last.done, last.cuts, last.at.Round(time.Second))
	for i, f := range panels {
		f.draw(&b, all, 76+i*(panelHeight+panelGap))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// draw is one panel, from zero up to what the figure reached.
func (f figure) draw(b *bytes.Buffer, all []sample, top int) {
	most := 0.0
	for _, s := range all {
		most = max(most, f.of(s))
	}
	scale := panelHeight / max(most*1.1, 1)
	fmt.Fprintf(b, `<text x="%d" y="%d">%s: second fifth %.1f, last fifth %.1f, most %.1f %s</text>
<rect x="%d" y="%d" width="%d" height="%d" fill="#f4f6f4"/>
<polyline fill="none" stroke="#2f6b3a" stroke-width="1.3" points="`, panelLeft, top-8, f.name, f.fifth(all, 1), f.fifth(all, 4), most, f.unit,
		panelLeft, top, panelWidth, panelHeight)
	end := float64(max(all[len(all)-1].done, 1))
	per := (len(all) + mostPoints - 1) / mostPoints
	for i := 0; i < len(all); i += per {
		peak := 0.0
		for _, s := range all[i:min(i+per, len(all))] {
			peak = math.Max(peak, f.of(s))
		}
		fmt.Fprintf(b, "%.1f,%.1f ", panelLeft+panelWidth*float64(all[i].done)/end, float64(top)+panelHeight-peak*scale)
	}
	b.WriteString("\"/>\n")
}
