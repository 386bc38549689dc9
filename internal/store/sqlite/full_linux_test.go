package sqlite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// smallDisk mounts a disk of a size, and returns its folder and what gives it another size.
func smallDisk(t *testing.T, size string) (dir string, resize func(size string)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("missing: root, to mount")
	}
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("missing: a mount of tmpfs")
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	return dir, func(size string) { must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size="+size)) }
}

// TestFullDisk fills a real disk: what was acknowledged is there, what was not says so once, and with room again all goes on,
// in this life of the store and in the next. Red when a caller is answered before its commit.
func TestFullDisk(t *testing.T) {
	dir, resize := smallDisk(t, "6m")
	path := filepath.Join(dir, "coppice.db")
	s, err := Open(t.Context(), path, Options{})
	must(t, err)
	defer func() { _ = s.Close() }() // before the disk goes
	free, err := FreeSpace(path)
	if err != nil || free <= 0 || free > 6<<20 {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	taken := map[message.ID]int{}
	fill := func(size int) (err error) {
		for range 1000 {
			var id message.ID
			if id, err = s.Receive(t.Context(), message.Incoming{Inbound: "adt", Body: noise(size)}); err != nil {
				return err
			}
			taken[id] = size
		}
		t.Fatalf("a disk of 6 MiB took 1000 messages of %d bytes", size)
		return nil
	}
	for _, size := range []int{2*maxChunk + 1, 10_000, 10} { // the last bit of room, too
		err := fill(size)
		if strings.Count(err.Error(), "receive: ") != 1 || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "full") {
			t.Errorf("got error %q", err)
		}
	}
	resize("64m")
	must(t, fillSome(t, s, taken))
	purgeAll(t, s, nil) // what the large one that was cut short has left
	wantNone(t, s, "loose", "pragma_quick_check WHERE quick_check <> 'ok'")
	must(t, s.Close())
	s, err = Open(t.Context(), path, Options{})
	must(t, err)
	list, err := s.Messages(t.Context(), store.Query{Limit: 10_000})
	must(t, err)
	for _, m := range list {
		// A message whose commit nobody could tell may be there, too.
		tl, err := s.Timeline(t.Context(), m.ID)
		must(t, err)
		if size, ok := taken[m.ID]; ok && (len(tl.Message.Body) != size || string(tl.Message.Body) != string(noise(size))) {
			t.Errorf("message %d of %d bytes has %d", m.ID, size, len(tl.Message.Body))
		}
		delete(taken, m.ID)
	}
	if len(taken) > 0 {
		t.Errorf("%d messages that were acknowledged are gone", len(taken))
	}
}

// fillSome receives and takes one message all the way.
func fillSome(t *testing.T, s *Store, taken map[message.ID]int) error {
	size := 3 * maxChunk
	id, err := s.Receive(t.Context(), message.Incoming{Inbound: "orm", Body: noise(size)})
	if err != nil {
		return err
	}
	taken[id] = size
	route(t, s, id, store.Plan{Handler: "h", To: []string{"out"}})
	next, err := s.NextRuns(t.Context(), "h", 1, 0)
	if err != nil {
		return err
	}
	return s.EndRun(t.Context(), next[0].Run.ID, message.Outcome{State: message.RunSent, Sends: []message.Send{{To: "out", Body: next[0].On.Body}}})
}
