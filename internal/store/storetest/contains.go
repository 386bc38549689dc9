package storetest

import (
	"fmt"
	"strings"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// testContains looks for texts in what came and in what was sent, across the bounds of chunks too. Red in SQLite when what
// was sent as it came is read again, when a search goes on behind what it found, and when it does not go by number.
func testContains(f *fixture) {
	big := large(600 << 10)
	copy(big[256<<10-3:], "needle")
	id := f.routed("adt", "came\x00\xff|x", plan("h", "a", "b", "c"))
	f.end(id, "h", sent([2]string{"a", "came\x00\xff|x"}, [2]string{"b", "sent"}, [2]string{"c", string(big)}))
	chunked := f.receive("adt", string(big))
	want := func(id message.ID, text string, want store.Hit) {
		f.Helper()
		got, err := f.s.Contains(f.ctx(), id, []byte(text))
		f.must(err)
		equal(f, fmt.Sprintf("%q in message %d", text, id), got, want)
	}
	own, all := int64(len("came\x00\xff|x")), int64(len("came\x00\xff|x")+len("sent")+len(big))
	want(id, "\x00\xff|", store.Hit{Found: true, Bytes: own})
	want(id, "sent", store.Hit{Found: true, Delivery: 2, Bytes: own + 4})
	want(id, "needle", store.Hit{Found: true, Delivery: 3, Bytes: all})
	want(id, "needles", store.Hit{Bytes: all}) // what was sent to a is what came, and read once
	want(chunked, "needle", store.Hit{Found: true, Bytes: int64(len(big))})
	want(chunked, "came", store.Hit{Bytes: int64(len(big))})
	_, err := f.s.Contains(f.ctx(), chunked+1, []byte("x"))
	f.wantErr(err, store.ErrNotFound)
}

// contains is where a search of a message is to find a text.
func (msg *modelMessage) contains(text string) store.Hit {
	if strings.Contains(msg.body, text) {
		return store.Hit{Found: true}
	}
	for _, d := range msg.deliveries {
		if d.state != message.Reserved && d.state != message.Closed && strings.Contains(d.body, text) {
			return store.Hit{Found: true, Delivery: d.number}
		}
	}
	return store.Hit{}
}

// checkContains searches a message for parts of the bodies that are drawn, and for what is in none.
func (m *machine) checkContains(msg *modelMessage) {
	for _, text := range []string{"a", "b", "MSH|", "\xff\x0b", "nowhere"} {
		got, err := m.s.Contains(m.ctx(), msg.id, []byte(text))
		m.must(err)
		got.Bytes = 0
		equal(m.fixture, fmt.Sprintf("%q in message %d", text, msg.id), got, msg.contains(text))
	}
}
