package http

import (
	"errors"
	"fmt"
	"io"
	nethttp "net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/message"
)

// No error of a configuration repeats the URL, which may hold a secret.
func TestOutboundConfig(t *testing.T) {
	for name, cfg := range map[string]OutboundConfig{
		"no scheme":   {URL: "hunter2"},
		"scheme":      {URL: "ftp://hunter2"},
		"no host":     {URL: "http:///hunter2"},
		"no URL":      {URL: "http://hunter2\x7f"},
		"tls on http": {URL: "http://hunter2", TLS: &secure.Client{}},
		"no ca":       {URL: "https://hunter2", TLS: &secure.Client{CA: "not-there"}},
	} {
		if _, err := NewOutbound(cfg); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStatus: what each status means. Red with each case of outcome taken out, and, for 302, with a Client in the transport's
// place: it follows.
func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		status  int
		header  string
		receipt string
		final   bool   // a rejection
		text    string // in the error
	}{
		{status: 200, receipt: `200 OK two\x0alines`},
		{status: 201, receipt: `201 Created two\x0alines`},
		{status: 204, receipt: `204 No Content`},
		{status: 299, receipt: `299 two\x0alines`},
		{status: 302, header: "Location: /other", text: `redirects are not followed; is it to be url = "/other"?`},
		{status: 304, text: "304 Not Modified"},
		{status: 400, final: true, text: `rejected with 400: Bad Request two\x0alines`},
		{status: 401, final: true, text: "401"},
		{status: 404, final: true, text: "404"},
		{status: 408, text: "408 Request Timeout"},
		{status: 413, final: true, text: "413"},
		{status: 422, final: true, text: "422"},
		{status: 425, text: "425 Too Early"},
		{status: 429, header: "Retry-After: 30", text: "(Retry-After: 30)"},
		{status: 500, text: `answered 500 Internal Server Error two\x0alines`},
		{status: 503, header: "Retry-After: 7", text: "(Retry-After: 7)"},
		{status: 599, text: "answered 599"},
	} {
		t.Run(fmt.Sprint(tc.status), func(t *testing.T) {
			url := receiver(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
				if r.URL.Path != "/in" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				if name, value, ok := strings.Cut(tc.header, ": "); ok {
					w.Header().Set(name, value)
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, "two\nlines")
			})
			receipt, err := outbound(t, OutboundConfig{URL: url + "/in"}).Send(t.Context(), connecttest.Delivery(1, []byte("x")))
			if tc.receipt != "" {
				if err != nil || receipt.Text != tc.receipt {
					t.Errorf("Send = %+v, %v", receipt, err)
				}
				return
			}
			var rejection *message.Rejection
			if err == nil || errors.As(err, &rejection) != tc.final || tc.final && !rejection.Final || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("Send = %v, want %q", err, tc.text)
			}
		})
	}
}

// TestRequest: what a receiver sees, and that both tries of a delivery have one name.
func TestRequest(t *testing.T) {
	var mu sync.Mutex
	var got []*nethttp.Request
	url := receiver(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r)
		if len(got) == 1 {
			w.WriteHeader(500)
		}
	})
	o := outbound(t, OutboundConfig{URL: url + "/in?to=a", Method: "PUT", ContentType: "x/y", Headers: map[string]string{"authorization": "Bearer hunter2"}})
	if _, err := o.Send(t.Context(), connecttest.Delivery(42, []byte("body"))); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Send = %v", err)
	}
	if _, err := o.Send(t.Context(), connecttest.Delivery(42, []byte("body"))); err != nil {
		t.Errorf("Send = %v", err)
	}
	for _, r := range got {
		if r.Method != "PUT" || r.URL.String() != "/in?to=a" || r.ContentLength != 4 || r.Header.Get("Content-Type") != "x/y" ||
			r.Header.Get("Authorization") != "Bearer hunter2" || r.Header.Get(DeliveryHeader) != "0000000042-1" ||
			r.Header.Get("Accept-Encoding") != "" || r.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%s %s, %d bytes, %v", r.Method, r.URL, r.ContentLength, r.Header)
		}
	}
	if len(got) != 2 || got[0].RemoteAddr != got[1].RemoteAddr {
		t.Errorf("%d requests, on one connection?", len(got))
	}
}

// Red with DisableKeepAlives left out.
func TestPerMessage(t *testing.T) {
	var mu sync.Mutex
	peers := map[string]bool{}
	url := receiver(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		mu.Lock()
		defer mu.Unlock()
		peers[r.RemoteAddr] = true
	})
	o := outbound(t, OutboundConfig{URL: url, PerMessage: true})
	for n := range 3 {
		if _, err := o.Send(t.Context(), connecttest.Delivery(n, []byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	if len(peers) != 3 {
		t.Errorf("%d connections, want 3", len(peers))
	}
}

// An answer is read up to a cap, and what is kept of it is one line. Red without the LimitReader: the answer has no end.
func TestEndlessAnswer(t *testing.T) {
	url := receiver(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("\x00line\r\n", 1000)); err != nil {
				return
			}
		}
	})
	receipt, err := outbound(t, OutboundConfig{URL: url}).Send(t.Context(), connecttest.Delivery(1, []byte("x")))
	if err != nil || len(receipt.Text) > maxText+16 || strings.ContainsAny(receipt.Text, "\x00\r\n") {
		t.Errorf("Send = %d bytes, %v", len(receipt.Text), err)
	}
}

// A body of an answer that never ends is waited for a while: what the header says counts, or the delivery would repeat for ever.
// The connection is not used again. Red without the timer, and with its error an error.
func TestAnswerWithoutAnEnd(t *testing.T) {
	for status, rejected := range map[int]bool{200: false, 422: true} {
		var connections sync.Map
		url := receiver(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
			connections.Store(r.RemoteAddr, true)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "so far")
			_ = nethttp.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		out := outbound(t, OutboundConfig{URL: url, Timeout: time.Second})
		for range 2 {
			receipt, err := out.Send(t.Context(), connecttest.Delivery(1, []byte("x")))
			rejection := (*message.Rejection)(nil)
			if errors.As(err, &rejection) != rejected || !rejected && (err != nil || receipt.Text != "200 OK so far") {
				t.Errorf("Send = %+v, %v", receipt, err)
			}
		}
		n := 0
		connections.Range(func(any, any) bool { n++; return true })
		if n != 2 {
			t.Errorf("%d connections, want one for each", n)
		}
	}
}

// A header of an answer that does not end is an error, and soon. Red without MaxResponseHeaderBytes.
func TestLargeHeader(t *testing.T) {
	url := receiver(t, func(w nethttp.ResponseWriter, _ *nethttp.Request) {
		for n := range 100 {
			w.Header().Set(fmt.Sprint("X-", n), strings.Repeat("x", 1000))
		}
	})
	_, err := outbound(t, OutboundConfig{URL: url}).Send(t.Context(), connecttest.Delivery(1, []byte("x")))
	if err == nil || !strings.Contains(err.Error(), "header") {
		t.Errorf("Send = %v", err)
	}
}
