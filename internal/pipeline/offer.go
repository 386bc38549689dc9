package pipeline

import (
	"cmp"
	"slices"
	"sync"

	"coppice.dev/coppice/internal/message"
)

// offers are runs of one handler that were just made, with their bodies, which would otherwise be read again from the store right
// away. They come from those who receive, in any order; what tells whether one of them is next is the run that was made before
// it.
type offers struct {
	room Room // for the bodies; nil: no bound but mostAhead and bytesAhead

	mu    sync.Mutex
	list  []message.Pending
	bytes int64 // of the bodies
	more  bool  // the store may have pending runs that are not offered
	shut  bool  // nobody takes offers, for now or for good
}

// add offers a run, and says whether there was room for it. The body is copied.
func (o *offers) add(p message.Pending, body []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := int64(len(body))
	if o.shut || len(o.list) == mostAhead || o.bytes+n > bytesAhead || !o.take(n) {
		return false
	}
	p.On.Body = append([]byte{}, body...)
	o.list, o.bytes = append(o.list, p), o.bytes+n
	return true
}

// take takes room for a body where there is plenty: what nobody works on must not be in the way of those who wait for room.
func (o *offers) take(n int64) bool {
	if o.room == nil {
		return true
	}
	if !o.room.Try(mostBody) {
		return false
	}
	o.room.Give(mostBody - n)
	return true
}

// look says that the store may have runs that are not offered.
func (o *offers) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.more = true
}

// behind returns what is known to be next once the run last has ended, and offers it no more; what came before that is dropped. If
// nothing is known to be next, it says whether the store is to be asked, and takes it that it is. From then on offers are taken.
func (o *offers) behind(last int64) (next []message.Pending, ask bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shut = false
	slices.SortFunc(o.list, func(a, b message.Pending) int { return cmp.Compare(a.Run.ID, b.Run.ID) })
	rest := o.list[:0]
	for _, p := range o.list {
		switch {
		case p.Before != 0 && p.Before == last:
			next, last = append(next, p), p.Run.ID
		case p.Run.ID > last:
			rest = append(rest, p)
			continue
		}
		o.give(p)
	}
	clear(o.list[len(rest):])
	o.list = rest
	if len(next) == 0 {
		ask, o.more = o.more || len(rest) > 0, false
	}
	return next, ask
}

// give gives back the room of a body that is offered no more.
func (o *offers) give(p message.Pending) {
	n := int64(len(p.On.Body))
	o.bytes -= n
	if o.room != nil {
		o.room.Give(n)
	}
}

// refuse drops all offers, and those that come before the next call of behind: while its handler waits for something else than them,
// they would be in the way of others for as long as that takes.
func (o *offers) refuse() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.list {
		o.give(p)
	}
	o.list, o.more, o.shut = nil, true, true
}
