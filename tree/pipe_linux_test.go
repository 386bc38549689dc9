package tree

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A link's pipes are wide from its first large write on, as long as there are few such links. Red without the check of
// mostWide, with narrow out of Close, with widen out of Write, and with a widen that small writes call too.
func TestLinkWidens(t *testing.T) {
	width := func(l *Link) int {
		raw, err := l.to.SyscallConn() // Fd would make it wait
		if err != nil {
			t.Fatal(err)
		}
		var n int
		raw.Control(func(fd uintptr) { n, err = unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0) })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	large := func() *Link {
		l := newLink(t)
		l.SetDeadline(time.Now().Add(50 * time.Millisecond)) // nobody reads
		ordinary := width(l)
		if l.Write(make([]byte, 100)); width(l) != ordinary {
			t.Error("a small write widened the pipes")
		}
		l.Write(make([]byte, largeWrite))
		return l
	}
	if !widenPipe(newLink(t).to) {
		t.Skip("missing: F_SETPIPE_SZ")
	}
	before := widened.Load()
	var all []*Link
	for range mostWide - int(before) {
		l := large()
		if width(l) < wideBytes {
			t.Fatal("a large write left the pipes as they were")
		}
		all = append(all, l)
	}
	if l := large(); width(l) >= wideBytes {
		t.Errorf("more than %d links are wide", mostWide)
	}
	for _, l := range all {
		l.Close()
		l.Close()
	}
	if now := widened.Load(); now != before {
		t.Errorf("%d links count as wide, there were %d", now, before)
	}
	if l := large(); width(l) < wideBytes {
		t.Error("the place of a closed link is not free")
	}
}
