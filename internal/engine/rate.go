package engine

import (
	"sync"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
)

// rates counts what went through each target in the last minute, second by second.
type rates struct {
	mu    sync.Mutex
	began time.Time // seconds count from here, on the monotonic clock
	each  map[message.Target]*minute
}

// minute is a ring of seconds; at is the last of them that was counted.
type minute struct {
	at     int64
	counts [60]int64
}

// roll empties the seconds that have passed since at.
func (m *minute) roll(now int64) {
	for s := max(m.at, now-int64(len(m.counts))); s < now; {
		s++
		m.counts[s%int64(len(m.counts))] = 0
	}
	m.at = max(m.at, now)
}

func (r *rates) count(t message.Target, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.each == nil {
		r.began, r.each = now, map[message.Target]*minute{}
	}
	second := int64(now.Sub(r.began) / time.Second)
	m := r.each[t]
	if m == nil {
		m = &minute{at: second}
		r.each[t] = m
	}
	m.roll(second)
	m.counts[m.at%int64(len(m.counts))]++
}

// last returns what went through in the last minute, of every target that had something.
func (r *rates) last(now time.Time) map[message.Target]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[message.Target]int64{}
	for t, m := range r.each {
		m.roll(int64(now.Sub(r.began) / time.Second))
		for _, n := range m.counts {
			out[t] += n
		}
		if out[t] == 0 {
			delete(out, t)
			delete(r.each, t)
		}
	}
	return out
}

// observe counts what the pipeline tells, and passes it on.
func (r *rates) observe(o pipeline.Observer) pipeline.Observer {
	routed, ran, sent := o.Routed, o.Ran, o.Sent
	o.Routed = func(id message.ID, inbound string, handlers []string) {
		r.count(message.Target{Kind: message.KindInbound, Name: inbound}, time.Now())
		if routed != nil {
			routed(id, inbound, handlers)
		}
	}
	o.Ran = func(id message.ID, handler string, out message.Outcome) {
		if handler != "" {
			r.count(message.Target{Kind: message.KindHandler, Name: handler}, time.Now())
		}
		if ran != nil {
			ran(id, handler, out)
		}
	}
	o.Sent = func(d message.Delivery, receipt message.Receipt) {
		r.count(message.Target{Kind: message.KindOutbound, Name: d.Outbound, Inbound: d.Inbound}, time.Now())
		if sent != nil {
			sent(d, receipt)
		}
	}
	return o
}
