package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// hostile is the program of TestHostile in Go; testdata/hostile.py and testdata/hostile.c are the same program again. Each
// speaks the protocol by hand, so that nothing but the engine keeps it from anything.
func hostile() {
	h := hand{r: os.NewFile(3, "r"), w: os.NewFile(4, "w")}
	boot, _ := h.hear()
	if boot.File != "" && os.Remove(boot.File) == nil { // who finds the file boots badly, and the next one does not
		h.boot(filepath.Base(boot.File))
	}
	h.w.Write(frame(`{"type":"ready","version":1,"sdk":"hostile","offers":[]}`))
	for {
		r, body := h.hear()
		h.act(r, body)
	}
}

// hand is the wire of a program that has nothing but its descriptors.
type hand struct{ r, w *os.File }

// heard are the fields of a header that the program looks at.
type heard struct{ File, ID, Phase, Name string }

// hear reads one frame of the engine's, and ends with the wire.
func (h hand) hear() (heard, []byte) {
	var size [4]byte
	if _, err := io.ReadFull(h.r, size[:]); err != nil {
		os.Exit(0)
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(h.r, b); err != nil {
		os.Exit(0)
	}
	header, rest := b[4:4+binary.BigEndian.Uint32(b)], b[4+binary.BigEndian.Uint32(b):]
	var f heard
	json.Unmarshal(header, &f)
	if len(rest) > 4 {
		return f, rest[4:]
	}
	return f, nil
}

// frame puts a header and segments together, and holds them to nothing.
func frame(header string, segments ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(header)))
	b = append(b, header...)
	for _, s := range segments {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// result is the answer that echoes a body, to whatever request.
func (f heard) result(body []byte) []byte {
	return frame(fmt.Sprintf(`{"type":"result","id":"%s","phase":"handle","name":"%s","sends":[{"to":"out","body":0}],"tags":{"pid":"%d"}}`,
		f.ID, f.Name, os.Getpid()), body)
}

// next is the id that a counter would give to the next request.
func (f heard) next() heard {
	last := f.ID[31]
	f.ID = f.ID[:31] + string("123456789abcdef0"[strings.IndexByte("0123456789abcdef", last)])
	return f
}

func (h hand) boot(how string) {
	switch how {
	case "boot crash":
		os.Exit(7)
	case "boot for ever":
		grandchild()
		time.Sleep(lifetime)
	case "boot by signal":
		killSelf()
	case "boot over the cap":
		h.w.Write([]byte{0xff, 0xff, 0xff, 0xff})
		os.Exit(0)
	}
}

// done tells the test that what was to be done has been done.
func done() { fmt.Fprintln(os.Stderr, "done") }

func (h hand) act(r heard, body []byte) {
	right := r.result(body)
	switch r.Name {
	case "echo":
		h.w.Write(right)
	case "flood":
		h.w.Write(right)
		done()
		h.w.Write(make([]byte, 64<<20))
		time.Sleep(lifetime)
	case "read nothing more":
		h.w.Write(right)
		time.Sleep(lifetime)
	case "read half":
		h.w.Write(right)
		io.CopyN(io.Discard, h.r, 4<<20)
		time.Sleep(lifetime)
	case "drip":
		h.drip(right, time.Millisecond)
	case "drip slowly":
		h.drip(right, 20*time.Millisecond)
	case "stop":
		stopSelf()
	case "answer late":
		time.Sleep(700 * time.Millisecond)
		h.w.Write(right)
	case "stage":
		h.w.Write(append(right, r.next().result([]byte("staged"))...))
	case "answer twice":
		os.WriteFile("answer", right, 0o600)
		start("copy", os.Args[3], wireFiles()...).Wait()
		h.w.Write(right)
		done()
	case "close":
		h.r.Close()
		h.w.Close()
		time.Sleep(lifetime)
	case "leave":
		grandchild()
		h.w.Write(right)
		os.Exit(0)
	case "print binary":
		os.Stdout.Write(append(right, "\x00\x01\xff\xfe\x1b[2J\r\n"...))
		h.w.Write(right)
	case "pour 64 MiB":
		pour(64 << 20)
		h.w.Write(right)
	case "pour 1 GiB":
		pour(1 << 30)
		h.w.Write(right)
	case "spin on":
		h.w.Write(right)
		spin()
	case "spin":
		spin()
	case "spin together":
		for range 3 {
			start("spin", os.Args[3])
		}
		time.Sleep(lifetime)
	case "keep":
		kept := make([]byte, 192<<20)
		for i := 0; i < len(kept); i += 4096 {
			kept[i] = 1
		}
		h.w.Write(right)
		h.act(h.hear())
		os.Exit(int(kept[0]))
	case "over the cap":
		h.w.Write([]byte{0xff, 0xff, 0xff, 0xff})
		time.Sleep(lifetime)
	case "over the cap and exit":
		h.w.Write([]byte{0xff, 0xff, 0xff, 0xff})
		os.Exit(0)
	case "cut and exit":
		h.w.Write(right[:20])
		os.Exit(4)
	case "wrong id":
		r.ID = strings.Repeat("a", 32)
		h.w.Write(r.result(body))
	case "zero id":
		r.ID = strings.Repeat("0", 32)
		h.w.Write(r.result(body))
	case "next id":
		h.w.Write(r.next().result(body))
	case "wrong name":
		r.Name = "echo"
		h.w.Write(r.result(body))
	case "wrong phase":
		h.w.Write(frame(fmt.Sprintf(`{"type":"result","id":"%s","phase":"route","name":"%s","handlers":[]}`, r.ID, r.Name)))
	case "ready again":
		h.w.Write(frame(`{"type":"ready","version":1,"sdk":"hostile","offers":[]}`))
	case "kill the parent":
		killParent()
		h.w.Write(right)
	case "peek": // into the file that the body names
		answer := "refused"
		if f, err := os.Open(string(body)); err == nil {
			f.Close()
			answer = "opened"
		}
		h.w.Write(r.result([]byte(answer)))
	case "burn": // 100 ms, or so
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		}
		h.w.Write(right)
	case "exit":
		os.Exit(3)
	case "signal":
		killSelf()
	}
}

func (h hand) drip(b []byte, pause time.Duration) {
	for i := range b {
		h.w.Write(b[i : i+1])
		time.Sleep(pause)
	}
}
