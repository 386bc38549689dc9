package mllp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/room"
)

// awaitRoom waits until what is taken is as it should be.
func awaitRoom(t *testing.T, r *room.Room, what string, is func(room.Used) bool) {
	t.Helper()
	for late := time.Now().Add(connecttest.Patience); !is(r.Used()); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%s: %+v is taken", what, r.Used())
		}
	}
}

func nothing(u room.Used) bool { return u == room.Used{} }

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// hostile sends what is nearly a message of 16 MiB, as far as it is read, and then is silent. most is a MiB.
func hostile(t *testing.T, addr string, most []byte) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-sent })
	go func() {
		defer close(sent)
		_, err := conn.Write([]byte("\x0b" + string(adt("huge"))))
		for n := 0; n < 16 && err == nil; n++ {
			_, err = conn.Write(most[:len(most)-100])
		}
	}()
	return conn
}

// Many who each send nearly a whole message of 16 MiB and no end hold no more than the room for what arrives, and keep out
// no small message. What they held is there again, however each of them ended. Red with Room.grow always true (they hold 16
// times as much), with begin's bytes taken from grown (the small one is not answered), and without in.Free in next.
func TestHostilePeersShareTheRoom(t *testing.T) {
	const total, peers = 64 << 20, 32
	ends := map[string]func(conns []net.Conn, served connecttest.Served){
		"reset": func(conns []net.Conn, _ connecttest.Served) {
			for _, c := range conns {
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		},
		"stop":    func(_ []net.Conn, served connecttest.Served) { served.Stop(t) },
		"timeout": func([]net.Conn, connecttest.Served) {},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			told := make(chan bool, 1000)
			memory := room.New(total, DefaultMaxMessage, func(tight bool, _ room.Used) { told <- tight })
			sink := connecttest.NewSink()
			timeout := 3 * time.Second
			in, served := serve(t, InboundConfig{Room: memory, FrameTimeout: timeout}, sink)
			most := make([]byte, 1<<20)
			before := heap()
			var conns []net.Conn
			for range peers {
				conns = append(conns, hostile(t, in.Addr(), most))
			}
			awaitRoom(t, memory, "hostile peers", func(u room.Used) bool { return u.Grown >= 16<<20 })
			if held := heap() - before; held > total {
				t.Errorf("%d bytes are in memory, want no more than %d", held, total)
			}
			if u := memory.Used(); u.Begun+u.Grown > total/2 {
				t.Errorf("%+v is taken, want no more than half of the room", u)
			}
			good := connectRaw(t, in.Addr())
			good.send(frame(adt("good")))
			good.wantAck(hl7.AA, "good")
			wantTold(t, told, true)
			end(conns, served)
			awaitRoom(t, memory, "after all of them", nothing)
			wantTold(t, told, false)
			for _, r := range sink.Refusals() {
				if strings.Contains(r.Reason, "memory") {
					t.Errorf("%q is recorded as refused for good", r.Reason)
				}
			}
		})
	}
}

// wantTold waits until a room has said that it is tight, or is not any more.
func wantTold(t *testing.T, told <-chan bool, tight bool) {
	t.Helper()
	late := time.After(connecttest.Patience)
	for {
		select {
		case now := <-told:
			if now == tight {
				return
			}
		case <-late:
			t.Fatalf("nobody is told that it is tight: %v", tight)
		}
	}
}

// The room is given back however a message ends. Red without in.Free in next, each.
func TestRoomIsGivenBack(t *testing.T) {
	body := append(adt("1"), bytes.Repeat([]byte("x"), 100_000)...)
	for name, tc := range map[string]struct {
		stream  []byte
		receive error
	}{
		"taken":         {stream: frame(body)},
		"not committed": {stream: frame(body), receive: errors.New("no")},
		"refused":       {stream: frame(bytes.Repeat([]byte("x"), 100_000))},
		"too large":     {stream: frame(append(body, make([]byte, 200_000)...))},
		"cut short":     {stream: frame(body)[:100_000]},
	} {
		t.Run(name, func(t *testing.T) {
			memory := room.New(0, 200_000, nil)
			sink := connecttest.NewSink()
			taken := make(chan room.Used, 1)
			sink.OnReceive(func(context.Context, message.Incoming) error {
				taken <- memory.Used()
				return tc.receive
			})
			in, _ := serve(t, InboundConfig{Room: memory, MaxMessage: 200_000}, sink)
			peer := connectRaw(t, in.Addr())
			peer.send(tc.stream)
			if name == "taken" || name == "not committed" {
				if u := <-taken; u.Begun+u.Grown < int64(len(body)) {
					t.Errorf("%+v is taken while a body of %d bytes is committed", u, len(body))
				}
			}
			if name == "cut short" {
				awaitRoom(t, memory, "read", func(u room.Used) bool { return u.Grown > 0 })
				_ = peer.Close()
			}
			if name == "refused" || name == "too large" {
				sink.AwaitRefusals(t, 1)
			}
			awaitRoom(t, memory, "at its end", nothing)
		})
	}
}

// A connection that a newer one has taken the place of waits for room no more. Red without end in line.Close.
func TestWhoLostItsPlaceWaitsNoMore(t *testing.T) {
	memory := room.New(0, 200_000, nil)
	in, _ := serve(t, InboundConfig{Room: memory, MaxMessage: 200_000, MaxConnections: 2, FrameTimeout: time.Minute}, connecttest.NewSink())
	loser, winner := connectRaw(t, in.Addr()), connectRaw(t, in.Addr())
	loser.send(append([]byte("\x0b"), make([]byte, 20_000)...))
	awaitRoom(t, memory, "the first", func(u room.Used) bool { return u.Begun > 0 })
	winner.send(append([]byte("\x0b"), make([]byte, 190_000)...))
	awaitRoom(t, memory, "the elder", func(u room.Used) bool { return u.Grown > 150_000 })
	loser.send(make([]byte, 100_000))
	awaitRoom(t, memory, "both", func(u room.Used) bool { return u.Begun == 2*room.Beginning })
	connectRaw(t, in.Addr())
	awaitRoom(t, memory, "the elder alone", func(u room.Used) bool { return u.Begun == room.Beginning })
}
