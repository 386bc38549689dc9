package mllp

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

func TestInboundConfig(t *testing.T) {
	for name, cfg := range map[string]InboundConfig{
		"no port":     {Listen: "127.0.0.1"},
		"unknown ack": {Listen: ":0", Ack: "always"},
	} {
		if _, err := NewInbound(cfg, connecttest.NewSink()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestListenTellsOfATakenAddress(t *testing.T) {
	in, _ := serve(t, InboundConfig{}, connecttest.NewSink())
	second, err := NewInbound(InboundConfig{Name: "second", Listen: in.Addr()}, connecttest.NewSink())
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Listen(t.Context()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen = %v, want address in use", err)
	}
}

func TestLoad(t *testing.T) {
	load := connecttest.Load(t)
	sink := connecttest.NewSink()
	in, _ := serve(t, InboundConfig{}, sink)
	client, err := Dial(t.Context(), in.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i, body := range load {
		if ack, err := client.Exchange(t.Context(), body); err != nil || ack.Code != hl7.AA {
			t.Fatalf("message %d: %+v, %v", i, ack, err)
		}
	}
	wantBodies(t, sink, load...)
}

func TestRefusedAndGoesOn(t *testing.T) {
	sink := connecttest.NewSink()
	in, _ := serve(t, InboundConfig{}, sink)
	peer := connectRaw(t, in.Addr())
	for i, body := range []string{"", "not HL7", "M\x00S\x00H\x00|\x00^\x00"} {
		peer.send(frame([]byte(body)))
		peer.wantAck(hl7.AR, "")
		got := sink.Refusals() // recorded before it was answered
		if len(got) != i+1 || got[i].Size != int64(len(body)) || got[i].Inbound != "in" || got[i].Reason == "" {
			t.Fatalf("refusals %+v", got)
		}
	}
	peer.send(frame(adt("9")))
	peer.wantAck(hl7.AA, "9")
	wantBodies(t, sink, adt("9"))
}

// A refusal that cannot be recorded is not told: nobody could find out what became of the message. Red with the result of
// record ignored.
func TestRefusalNotRecorded(t *testing.T) {
	sink := connecttest.NewSink()
	sink.OnRefuse(func(context.Context, message.Refusal) error { return connect.ErrBusy })
	in, _ := serve(t, InboundConfig{}, sink)
	peer := connectRaw(t, in.Addr())
	peer.send(frame([]byte("not HL7")))
	peer.wantClosed()
}

// The sender of a body over the limit is told while it still sends. Red without the linger: the close resets the
// connection, and the sender, still writing, never comes to read the answer.
func TestHuge(t *testing.T) {
	sink := connecttest.NewSink()
	in, _ := serve(t, InboundConfig{MaxMessage: 10_000}, sink)
	peer := connectRaw(t, in.Addr())
	// Less than is waited for, and more than the buffers of both ends hold before much of it is read.
	if err := peer.Conn.(*net.TCPConn).SetWriteBuffer(4096); err != nil {
		t.Fatal(err)
	}
	peer.send(frame(append(adt("big"), make([]byte, 900_000)...)))
	peer.wantAck(hl7.AR, "big")
	peer.wantClosed()
	if got := sink.AwaitRefusals(t, 1); !strings.Contains(got[0].Reason, "10000") || got[0].Size > 10_000+readBuffer {
		t.Errorf("refusals %+v", got)
	}
	if n := len(sink.Messages()); n != 0 {
		t.Errorf("%d messages, want none", n)
	}
}

func TestRecordedAndClosed(t *testing.T) {
	for name, tc := range map[string]struct{ stream, reason string }{
		"no block end":    {"\x0b" + string(adt("1")), "no block end"},
		"unframed":        {string(adt("1")), "outside of a block"},
		"http":            {"GET / HTTP/1.1\r\n\r\n", "outside of a block"},
		"stray":           {strings.Repeat("\x00", maxStray+1), "filling bytes"},
		"huge, no header": {"\x0b" + strings.Repeat("x", 100_000), "over the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			sink := connecttest.NewSink()
			in, _ := serve(t, InboundConfig{FrameTimeout: 100 * time.Millisecond, MaxMessage: 50_000}, sink)
			peer := connectRaw(t, in.Addr())
			peer.send([]byte(tc.stream))
			if got := sink.AwaitRefusals(t, 1); !strings.Contains(got[0].Reason, tc.reason) || got[0].Peer == "" {
				t.Errorf("refusal %+v, want %q", got[0], tc.reason)
			}
			peer.wantClosed()
		})
	}
}

// A peer that never reads its answers is closed when they fill its buffers, and holds up nobody. Red without the write
// deadline.
func TestNeverReads(t *testing.T) {
	sink := connecttest.NewSink()
	in, _ := serve(t, InboundConfig{WriteTimeout: 100 * time.Millisecond}, sink)
	peer := connectRaw(t, in.Addr())
	_ = peer.Conn.(*net.TCPConn).SetReadBuffer(4096)
	id := strings.Repeat("x", 30_000) // comes back in every answer
	block := frame(adt(id))
	for { // until the inbound has closed
		if _, err := peer.Write(block); err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				t.Fatal("the inbound does not close")
			}
			break
		}
	}
	good := connectRaw(t, in.Addr())
	good.send(frame(adt("good")))
	good.wantAck(hl7.AA, "good")
}

// Stops in time, whatever its peers are at. Each is red with stop's deadlines left out.
func TestStopWhateverPeersDo(t *testing.T) {
	for name, do := range map[string]func(raw){
		"silent":        func(raw) {},
		"inside a body": func(p raw) { p.send([]byte("\x0bMSH|")) },
		"after FS":      func(p raw) { p.send([]byte("\x0bMSH|\x1c")) },
		"never reads": func(p raw) {
			_ = p.Conn.(*net.TCPConn).SetReadBuffer(4096)
			_ = p.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
			block := frame(adt(strings.Repeat("x", 30_000)))
			for _, err := p.Write(block); err == nil; _, err = p.Write(block) {
			}
		},
		"huge": func(p raw) {
			_ = p.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = p.Write(append([]byte("\x0bMSH|^~\\&|||||||A|1\r"), make([]byte, 8<<20)...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := connecttest.NewSink()
			in, served := serve(t, InboundConfig{MaxMessage: 1 << 20, WriteTimeout: time.Minute}, sink)
			first := connectRaw(t, in.Addr())
			first.send(frame(adt("1")))
			first.wantAck(hl7.AA, "1")
			do(connectRaw(t, in.Addr()))
			served.Stop(t)
			first.wantClosed()
		})
	}
}

func TestAckModes(t *testing.T) {
	for _, tc := range []struct {
		mode                  AckMode
		accept, app           string
		taken, refused        string
		wantTaken, wantRefuse bool
	}{
		{AckOriginal, "", "", "AA", "AR", true, true},
		{AckOriginal, "NE", "NE", "AA", "AR", true, true},
		{AckNone, "AL", "AL", "", "", false, false},
		{AckEnhanced, "", "", "AA", "AR", true, true},
		{AckEnhanced, "AL", "", "CA", "CR", true, true},
		{AckEnhanced, "AL", "AL", "CA", "CR", true, true},
		{AckEnhanced, "SU", "", "CA", "", true, false},
		{AckEnhanced, "ER", "", "", "CR", false, true},
		{AckEnhanced, "NE", "AL", "AA", "AR", true, true},
		{AckEnhanced, "", "ER", "", "AR", false, true},
		{AckEnhanced, "NE", "NE", "", "", false, false},
	} {
		h := hl7.Header{Segment: "MSH", AcceptAck: tc.accept, AppAck: tc.app}
		if code, want := tc.mode.taken(h); code != tc.taken || want != tc.wantTaken {
			t.Errorf("%+v: taken %q, %v", tc, code, want)
		}
		if code, want := tc.mode.refused(h); code != tc.refused || want != tc.wantRefuse {
			t.Errorf("%+v: refused %q, %v", tc, code, want)
		}
	}
}

func TestAckNoneStaysOpen(t *testing.T) {
	sink := connecttest.NewSink()
	in, served := serve(t, InboundConfig{Ack: AckNone}, sink)
	peer := connectRaw(t, in.Addr())
	peer.send(append(frame([]byte("bad")), append(frame(adt("1")), frame(adt("2"))...)...))
	wantBodies(t, sink, adt("1"), adt("2"))
	served.Stop(t)
	peer.wantClosed()
}
