package pipeline

import (
	"fmt"
	"slices"
	"time"

	"coppice.dev/coppice/internal/message"
	"pgregory.net/rapid"
)

// scenario is one drawn world: who is wired to whom, what comes in, how everything behaves, and when the engine ends. How
// it must turn out follows from it alone; see want.
type scenario struct {
	inbounds  []scenInbound
	handlers  []scenHandler
	outbounds int
	parallel  []int         // of each outbound; 0 keeps order
	messages  []scenMessage // by id, from 1
	lives     []scenLife    // the last one ends when all is done
	troubles  []trouble     // of the store
	took      []time.Duration
}

type scenInbound struct {
	static []int // nil: a router
	down   []span
}

type scenHandler struct {
	to   []int
	down []span // its worker cannot boot: nobody's fault
}

type span struct{ from, to time.Duration }

// trouble is a time in which the store answers every call with an error.
type trouble struct {
	span
	happens bool // the calls take effect all the same
}

type scenMessage struct {
	inbound int
	wait    time.Duration // after the one before
	route   scenRoute
	parts   []scenPart // by handler
}

type scenRoute struct {
	act    act
	chosen []int
}

type scenPart struct {
	act   act
	sends []scenSend
}

type scenSend struct {
	to     int
	act    act
	faults int // how often it fails, or is rejected, before it is taken
}

// act is how a function or a receiver behaves.
type act string

const (
	works     act = "works"
	drops     act = "drops"
	raises    act = "raises"
	crashes   act = "crashes once"
	poisons   act = "crashes always"
	unknown   act = "names what is not there"
	unreached act = "is out of reach for a while"
	rejects   act = "rejects for a while"
	deadens   act = "rejects always"
	refuses   act = "rejects for good"
)

// scenLife is one life of the engine.
type scenLife struct {
	length time.Duration
	end    lifeEnd
}

// lifeEnd is how a life ends.
type lifeEnd string

const (
	stops    lifeEnd = "stop with grace"
	cuts     lifeEnd = "stop without grace"
	isKilled lifeEnd = "kill"
)

const mostRejected = 3

func drawScenario(t *rapid.T) *scenario {
	s := &scenario{outbounds: rapid.IntRange(1, 3).Draw(t, "outbounds")}
	for i := range s.outbounds {
		s.parallel = append(s.parallel, rapid.IntRange(0, 3).Draw(t, fmt.Sprintf("o%d parallel", i)))
	}
	handlers := rapid.IntRange(1, 4).Draw(t, "handlers")
	for i := range handlers {
		s.handlers = append(s.handlers, scenHandler{to: drawSubset(t, s.outbounds, fmt.Sprintf("h%d to", i)), down: drawSpans(t, 3000, fmt.Sprintf("h%d down", i))})
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "inbounds") {
		in := scenInbound{down: drawSpans(t, 3000, fmt.Sprintf("i%d down", i))}
		if rapid.Bool().Draw(t, fmt.Sprintf("i%d static", i)) {
			in.static = append([]int{}, drawSubset(t, handlers, fmt.Sprintf("i%d handlers", i))...)
		}
		s.inbounds = append(s.inbounds, in)
	}
	for i := range rapid.IntRange(1, 12).Draw(t, "messages") {
		s.messages = append(s.messages, s.drawMessage(t, fmt.Sprintf("m%d ", i+1)))
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "ends") {
		s.lives = append(s.lives, scenLife{
			length: drawTime(t, 1500, fmt.Sprintf("life %d", i)),
			end:    rapid.SampledFrom([]lifeEnd{stops, cuts, isKilled}).Draw(t, fmt.Sprintf("end %d", i)),
		})
	}
	for i, at := range drawSpans(t, 500, "trouble") {
		s.troubles = append(s.troubles, trouble{at, rapid.Bool().Draw(t, fmt.Sprintf("trouble %d happens", i))})
	}
	for i := range 7 {
		s.took = append(s.took, drawTime(t, 50, fmt.Sprintf("took %d", i)))
	}
	return s
}

func (s *scenario) drawMessage(t *rapid.T, label string) scenMessage {
	m := scenMessage{
		inbound: rapid.IntRange(0, len(s.inbounds)-1).Draw(t, label+"inbound"),
		wait:    drawTime(t, 200, label+"wait"),
		route: scenRoute{
			act:    rapid.SampledFrom([]act{works, works, works, works, raises, crashes, poisons, unknown}).Draw(t, label+"route"),
			chosen: rapid.SliceOfN(rapid.IntRange(0, len(s.handlers)-1), 0, 4).Draw(t, label+"chosen"),
		},
	}
	for i, h := range s.handlers {
		label := fmt.Sprintf("%sh%d ", label, i)
		p := scenPart{act: rapid.SampledFrom([]act{works, works, works, works, works, drops, raises, crashes, poisons, unknown}).Draw(t, label+"act")}
		if len(h.to) > 0 {
			for range rapid.IntRange(0, 3).Draw(t, label+"sends") {
				p.sends = append(p.sends, scenSend{
					to:     rapid.SampledFrom(h.to).Draw(t, label+"to"),
					act:    rapid.SampledFrom([]act{works, works, works, unreached, rejects, deadens, refuses}).Draw(t, label+"send"),
					faults: rapid.IntRange(1, mostRejected-1).Draw(t, label+"faults"),
				})
			}
		}
		m.parts = append(m.parts, p)
	}
	return m
}

func drawSubset(t *rapid.T, n int, label string) (set []int) {
	bits := rapid.IntRange(0, 1<<n-1).Draw(t, label)
	for i := range n {
		if bits&(1<<i) != 0 {
			set = append(set, i)
		}
	}
	return set
}

func drawTime(t *rapid.T, most int, label string) time.Duration {
	return time.Duration(rapid.IntRange(0, most).Draw(t, label)) * time.Millisecond
}

func drawSpans(t *rapid.T, latest int, label string) (spans []span) {
	for range rapid.IntRange(0, 2).Draw(t, label) {
		from := drawTime(t, latest, label+" from")
		spans = append(spans, span{from, from + drawTime(t, 3000, label+" for")})
	}
	return spans
}

// body names a send for ever: what it is of, and which.
func body(id message.ID, handler, send int) string {
	return fmt.Sprintf("m%d h%d s%d", id, handler, send)
}

// lane is one lane as a label.
func lane(in, out int) string { return fmt.Sprintf("i%d>o%d", in, out) }

// planned returns the handlers that a message goes to, in order; false if its router fails on it.
func (s *scenario) planned(m scenMessage) ([]int, bool) {
	chosen := s.inbounds[m.inbound].static
	if chosen == nil {
		switch m.route.act {
		case raises, poisons, unknown:
			return nil, false
		}
		chosen = m.route.chosen
	}
	var plan []int
	for _, h := range chosen {
		if !slices.Contains(plan, h) {
			plan = append(plan, h)
		}
	}
	return plan, true
}

// want computes how the scenario must turn out: the disposition of each message, and for each lane what the receiver
// takes, in the order in which it does if the lane keeps any.
func (s *scenario) want() (dispositions []message.Disposition, lanes map[string][]string) {
	lanes = map[string][]string{}
	for i, m := range s.messages {
		plan, routed := s.planned(m)
		failed, done := !routed, false
		for _, h := range plan {
			part := m.parts[h]
			switch part.act {
			case raises, poisons, unknown:
				failed = true
			case works, crashes:
				for n, send := range part.sends {
					if send.act == deadens || send.act == refuses {
						failed = true
						continue
					}
					done = true
					l := lane(m.inbound, send.to)
					lanes[l] = append(lanes[l], body(message.ID(i+1), h, n))
				}
			}
		}
		d := message.Unrouted
		switch {
		case failed:
			d = message.Error
		case done:
			d = message.Processed
		case len(plan) > 0:
			d = message.Filtered
		}
		dispositions = append(dispositions, d)
	}
	return dispositions, lanes
}
