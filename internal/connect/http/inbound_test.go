package http

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/room"
)

func TestInboundConfig(t *testing.T) {
	for name, cfg := range map[string]InboundConfig{
		"no port":         {Listen: "127.0.0.1"},
		"path":            {Listen: ":0", Path: "in"},
		"header":          {Listen: ":0", AuthHeader: "hunter2"},
		"header, no name": {Listen: ":0", AuthHeader: ": hunter2"},
		"header, empty":   {Listen: ":0", AuthHeader: "hunter2:  "},
	} {
		if _, err := NewInbound(cfg, connecttest.NewSink()); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const token = "Bearer s3cret"

// TestRequests: each request gets its status, and what could be a message is on record. Seen red, line by line, without each
// case of objection, and with "size == 0" left out of take.
func TestRequests(t *testing.T) {
	post := func(headers string, body string) string {
		return fmt.Sprintf("POST /in HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\n%sContent-Length: %d\r\n\r\n%s", token, headers, len(body), body)
	}
	for _, tc := range []struct {
		name, request string
		status        int
		header        string // that the answer must have
		reason        string // of the refusal; empty: none
		body          string // of the message; empty: none
	}{
		{"post", post("", "MSH|^~\\&|||||||ADT^A01|7|P|2.5\r"), 200, "Content-Type: application/json", "", "MSH|^~\\&|||||||ADT^A01|7|P|2.5\r"},
		{"put", "PUT" + strings.TrimPrefix(post("", "x"), "POST"), 200, "", "", "x"},
		{"query", strings.Replace(post("", "x"), "/in", "/in?from=lab", 1), 200, "", "", "x"},
		{"no HL7", post("Content-Type: application/fhir+json\r\n", `{"a": 1}`), 200, "", "", `{"a": 1}`},
		{"identity", post("Content-Encoding: identity\r\n", "x"), 200, "", "", "x"},
		{"chunked", "POST /in HTTP/1.1\r\nHost: x\r\nAuthorization: " + token + "\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, "", "", "abcde"},
		{"utf-16", post("", "M\x00S\x00H\x00|\x00"), 200, "", "", "M\x00S\x00H\x00|\x00"},
		{"get", "GET /in HTTP/1.1\r\nHost: x\r\n\r\n", 405, "Allow: POST, PUT", "405", ""},
		{"options", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404, "", "404", ""},
		{"elsewhere", strings.Replace(post("", "x"), "/in", "/in/", 1), 404, "", "404", ""},
		{"no auth", "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 401, `Www-Authenticate: Bearer realm="coppice"`, "401", ""},
		{"wrong auth", strings.Replace(post("", "x"), "s3cret", "s3cres", 1), 401, "", "401", ""},
		{"auth twice", post("Authorization: "+token+"\r\n", "x"), 401, "", "401", ""},
		{"gzip", post("Content-Encoding: gzip\r\n", "x"), 415, "", "415", ""},
		{"empty", post("", ""), 400, "", "empty", ""},
		{"large", post("", strings.Repeat("x", 1001)), 413, "Connection: close", "1000 bytes", ""},
		{"largest", post("", strings.Repeat("x", 1000)), 200, "", "", strings.Repeat("x", 1000)},
		{"large, chunked", "POST /in HTTP/1.1\r\nHost: x\r\nAuthorization: " + token + "\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" +
			strings.Repeat("x", 1001) + "\r\n0\r\n\r\n", 413, "", "1000 bytes", ""},
		{"large, promised", "POST /in HTTP/1.1\r\nHost: x\r\nAuthorization: " + token + "\r\nExpect: 100-continue\r\nContent-Length: 1000000000\r\n\r\n",
			413, "", "1000 bytes", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sink := connecttest.NewSink()
			in := serve(t, InboundConfig{Path: "/in", AuthHeader: "Authorization: " + token, MaxMessage: 1000}, sink)
			answer, text := ask(t, in.Addr(), tc.request)
			if answer.StatusCode != tc.status {
				t.Fatalf("answered %s: %s", answer.Status, text)
			}
			if name, value, _ := strings.Cut(tc.header, ": "); tc.header != "" && answer.Header.Get(name) != value && !(name == "Connection" && answer.Close) {
				t.Errorf("%s: %q, want %q", name, answer.Header.Get(name), value)
			}
			if strings.Contains(text, "s3cre") {
				t.Errorf("the answer tells the secret: %s", text)
			}
			messages, refusals := sink.Messages(), sink.Refusals()
			if tc.body != "" && (len(messages) != 1 || string(messages[0].Body) != tc.body || text != "{\"id\":1}\n") {
				t.Errorf("messages %+v, answer %q", messages, text)
			}
			if tc.body == "" && len(messages) != 0 {
				t.Errorf("messages %+v, want none", messages)
			}
			if (tc.reason != "") != (len(refusals) == 1) || tc.reason != "" && !strings.Contains(refusals[0].Reason, tc.reason) {
				t.Errorf("refusals %+v, want %q", refusals, tc.reason)
			}
			if tc.name == "post" && (messages[0].Type != "ADT^A01" || messages[0].ControlID != "7") {
				t.Errorf("type %q, control id %q", messages[0].Type, messages[0].ControlID)
			}
		})
	}
}

// A wrong password is on record, though not as often as it is tried; a message that cannot be taken is, each time. Red with Record in
// the place of RecordOnce in turnAway, and with RecordOnce in the place of Record.
func TestRefusalsAreBounded(t *testing.T) {
	sink := connecttest.NewSink()
	in := serve(t, InboundConfig{AuthHeader: "X-Key: right"}, sink)
	for range 20 {
		if answer, _ := ask(t, in.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nX-Key: wrong\r\nContent-Length: 1\r\n\r\nx"); answer.StatusCode != 401 {
			t.Fatalf("answered %s", answer.Status)
		}
	}
	if got := sink.Refusals(); len(got) != 1 {
		t.Errorf("%d refusals, want 1", len(got))
	}
	for range 3 {
		ask(t, in.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nX-Key: right\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx")
	}
	if got := sink.Refusals(); len(got) != 4 {
		t.Errorf("%d refusals, want 4", len(got))
	}
}

// A refusal that cannot be recorded is not told: nobody could find out what became of the message. Red with the result of
// the record ignored, in turnAway and in refuse.
func TestRefusalNotRecorded(t *testing.T) {
	sink := connecttest.NewSink()
	sink.OnRefuse(func(context.Context, message.Refusal) error { return connect.ErrBusy })
	in := serve(t, InboundConfig{MaxMessage: 10}, sink)
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nxxxxxxxxxxx",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nxxxxxxxxxxx\r\n0\r\n\r\n",
	} {
		if answer, text := ask(t, in.Addr(), request); answer.StatusCode != 503 || answer.Header.Get("Retry-After") == "" {
			t.Errorf("%.60q: answered %s: %s", request, answer.Status, text)
		}
	}
}

// Bodies that do not fit into the memory for all of them are to come again; those that do are not held up by them. Red with
// Body.take always nil.
func TestMemoryOfBodies(t *testing.T) {
	sink := connecttest.NewSink()
	memory := room.New(600_000, 150_000, nil) // for one large body and some small ones
	in := serve(t, InboundConfig{MaxMessage: 150_000, Room: memory, BodyTimeout: 200 * time.Millisecond}, sink)
	full := fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 150000\r\n\r\n%s", strings.Repeat("x", 150_000))
	first := dial(t, in.Addr())
	if _, err := io.WriteString(first, full[:len(full)-1]); err != nil {
		t.Fatal(err)
	}
	late := time.Now().Add(connecttest.Patience)
	for memory.Used().Grown < 100_000 { // it is read when the machine likes
		if time.Now().After(late) {
			t.Fatal("the first body is not read")
		}
		time.Sleep(time.Millisecond)
	}
	if answer, text := ask(t, in.Addr(), full); answer.StatusCode != 503 {
		t.Errorf("a large one is answered %s: %s", answer.Status, text)
	}
	if answer, text := ask(t, in.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"); answer.StatusCode != 200 {
		t.Errorf("a small one is answered %s: %s", answer.Status, text)
	}
	if _, err := io.WriteString(first, full[len(full)-1:]); err != nil {
		t.Fatal(err)
	}
	if status, _, err := readAnswer(bufio.NewReader(first)); status != 200 {
		t.Errorf("the first is answered %d, %v", status, err)
	}
	for memory.Used() != (room.Used{}) { // given back a moment after the answer
		if time.Now().After(late) {
			t.Fatal("room is not given back")
		}
		time.Sleep(time.Millisecond)
	}
	if answer, text := ask(t, in.Addr(), full); answer.StatusCode != 200 {
		t.Errorf("with room again, answered %s: %s", answer.Status, text)
	}
	if got := sink.Refusals(); len(got) != 0 {
		t.Errorf("refusals %+v, want none: they are to come again", got)
	}
}

// A header over its cap, and what is no HTTP at all, is on record. Red without watch.
func TestNoHTTP(t *testing.T) {
	for name, text := range map[string]string{
		"mllp":         "\x0bMSH|^~\\&|||||||ADT^A01|7|P|2.5\r\x1c\r\n\n",
		"large header": "POST / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n",
	} {
		sink := connecttest.NewSink()
		in := serve(t, InboundConfig{}, sink)
		conn := dial(t, in.Addr())
		_, _ = io.WriteString(conn, text) // may be closed before all of it is sent
		if status, _, err := readAnswer(bufio.NewReader(conn)); err == nil && status/100 != 4 {
			t.Errorf("%s: answered %d", name, status)
		}
		sink.AwaitRefusals(t, 1)
	}
}

// A peer that never reads its answers is closed when they fill its buffers. Red without the deadline in answer; the one of the server
// itself is an hour away.
func TestNeverReads(t *testing.T) {
	in := serve(t, InboundConfig{WriteTimeout: 100 * time.Millisecond, BodyTimeout: time.Hour}, connecttest.NewSink())
	conn := dial(t, in.Addr())
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // some ten thousand answers fill the buffers
	many := []byte(strings.Repeat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 200))
	for { // until the inbound has closed
		if _, err := conn.Write(many); err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				t.Fatal("the inbound does not close")
			}
			return
		}
	}
}
