package engine

import (
	"errors"
	"fmt"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/message"
)

const networkTOML = `
version = 1
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
handlers = ["numbered"]
[inbound.web]
http = { listen = "127.0.0.1:0", path = "/in", auth_header = "X-Key: open sesame" }
handlers = ["numbered"]
[handler.numbered]
run = "feed.py:numbered"
to = ["emr"]
[outbound.emr]
http = { url = %q, headers = { Authorization = "Bearer hunter2" }, tls = { ca = %q } }
retry = { first = "10ms", max = "10ms" }
`

// web is a receiver over HTTPS that keeps what it takes.
type web struct {
	mu     sync.Mutex
	tries  map[string]int // by delivery
	bodies []string
}

func (w *web) ServeHTTP(rw nethttp.ResponseWriter, r *nethttp.Request) {
	body, err := io.ReadAll(r.Body)
	w.mu.Lock()
	defer w.mu.Unlock()
	name := r.Header.Get("Coppice-Delivery")
	w.tries[name]++
	switch {
	case err != nil, r.Header.Get("Authorization") != "Bearer hunter2", name == "":
		rw.WriteHeader(nethttp.StatusForbidden)
	case strings.Contains(string(body), "unwanted"):
		nethttp.Error(rw, "no such bed", nethttp.StatusUnprocessableEntity)
	case w.tries[name] == 1:
		nethttp.Error(rw, "not now", nethttp.StatusInternalServerError)
	default:
		w.bodies = append(w.bodies, string(body))
	}
}

// TestNetwork: messages come by MLLP and by HTTP, go through a worker, and leave by HTTPS to a receiver that is there at the
// second try, and wants one of them never.
func TestNetwork(t *testing.T) {
	needPython(t)
	authority := connecttest.NewAuthority(t)
	receiver := &web{tries: map[string]int{}}
	server := httptest.NewUnstartedServer(receiver)
	var err error
	if server.TLS, err = authority.Server(t, false).Config(); err != nil {
		t.Fatal(err)
	}
	server.StartTLS()
	defer server.Close()
	e := serve(t, folder(t, fmt.Sprintf(networkTOML, server.URL+"/hl7", filepath.ToSlash(authority.File))), Options{})
	client := dial(t, e.Addr("feed"))
	var want []string
	for n := range 4 {
		body := string(troubleMessage(fmt.Sprint("good ", n)))
		if n == 1 {
			body = string(troubleMessage("unwanted"))
		}
		if n < 2 {
			exchange(t, client, []byte(body))
		} else {
			post(t, "http://"+e.Addr("web")+"/in", body, fmt.Sprintf("{\"id\":%d}\n", n+1))
		}
		e.quiet(t, int64(n)+1) // between inbounds there is no order
		if n != 1 {
			want = append(want, fmt.Sprintf("%sZID|%d\r", body, n+1))
		}
	}
	e.end(t)
	if got := receiver.bodies; strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the receiver has %q, want %q", got, want)
	}
	for name, tries := range receiver.tries {
		if want := map[bool]int{true: 1, false: 2}[name == "0000000002-1"]; tries != want {
			t.Errorf("delivery %s was tried %d times, want %d", name, tries, want)
		}
	}
	cfg, err := config.Load(e.cfg.File, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	rejected, err := again.Store().Timeline(t.Context(), 2)
	if err != nil || rejected.Message.Disposition != message.Error || !strings.Contains(rejected.Message.Reason, "rejected with 422: Unprocessable Entity no such bed") {
		t.Errorf("%s, %q, %v", rejected.Message.Disposition, rejected.Message.Reason, err)
	}
	taken, err := again.Store().Timeline(t.Context(), 1)
	if err != nil || len(taken.Deliveries) != 1 || taken.Deliveries[0].Receipt != "200 OK" {
		t.Errorf("%+v, %v", taken.Deliveries, err)
	}
}

func post(t *testing.T, url, body, want string) {
	t.Helper()
	r, err := nethttp.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Key", "open sesame")
	answer, err := (&nethttp.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != 200 || string(text) != want {
		t.Fatalf("answered %s, %q, %v; want %q", answer.Status, text, err, want)
	}
}

// TestTLSFiles: a file that cannot be used is an error where the configuration names it, before anything runs. Red without
// the case of a FileError in connectionError: the place is that of the address.
func TestTLSFiles(t *testing.T) {
	const in = "\n[inbound.feed]\n%s\nhandlers = [\"numbered\"]\n[handler.numbered]\nrun = \"feed.py:numbered\"\nto = [\"emr\"]\n[outbound.emr]\n%s\n"
	for place, connections := range map[string][2]string{
		"inbound.feed.mllp.tls.cert": {`mllp = { listen = "127.0.0.1:0", tls = { cert = "none.crt", key = "none.key" } }`, `file = { dir = "out" }`},
		"inbound.feed.http.tls.key":  {`http = { listen = "127.0.0.1:0", tls = { cert = "one.crt", key = "none.key" } }`, `file = { dir = "out" }`},
		"outbound.emr.mllp.tls.ca":   {`mllp = { listen = "127.0.0.1:0" }`, `mllp = { connect = "127.0.0.1:1", tls = { ca = "feed.py" } }`},
		"outbound.emr.http.tls.cert": {`mllp = { listen = "127.0.0.1:0" }`, `http = { url = "https://127.0.0.1:1", tls = { cert = "feed.py", key = "one.key" } }`},
	} {
		needPython(t)
		dir := folder(t, "version = 1"+fmt.Sprintf(in, connections[0], connections[1]))
		cert, key := connecttest.NewAuthority(t).Issue(t, "one")
		for from, to := range map[string]string{cert: "one.crt", key: "one.key"} {
			if err := os.Rename(from, filepath.Join(dir, to)); err != nil {
				t.Fatal(err)
			}
		}
		cfg, err := config.Load(dir, os.LookupEnv)
		if err != nil {
			t.Fatal(err)
		}
		e, opened := Open(t.Context(), cfg, Options{})
		if opened == nil {
			e.Close()
		}
		for _, err := range []error{opened, Check(t.Context(), cfg, func(Checked) {}, func(*config.Error) {})} {
			var at *config.Error
			if !errors.As(err, &at) || at.Key != place {
				t.Errorf("%s: %v", place, err)
			}
		}
	}
}

// TestKeysAreNoCode: the key of a connection is not copied to where workers load their code from. Red with the TLS cases left out
// of data.
func TestKeysAreNoCode(t *testing.T) {
	authority := connecttest.NewAuthority(t)
	dir := folder(t, `
version = 1
[inbound.feed]
mllp = { listen = "127.0.0.1:0", tls = { cert = "in.crt", key = "in.key" } }
handlers = ["numbered"]
[inbound.web]
http = { listen = "127.0.0.1:0", tls = { cert = "web.crt", key = "web.key" } }
handlers = ["numbered"]
[handler.numbered]
run = "feed.py:numbered"
to = ["emr", "url"]
[outbound.emr]
mllp = { connect = "127.0.0.1:1", tls = { cert = "emr.crt", key = "emr.key" } }
[outbound.url]
http = { url = "https://127.0.0.1:1", tls = { cert = "url.crt", key = "url.key" } }
`)
	for _, name := range []string{"in", "web", "emr", "url"} {
		cert, key := authority.Issue(t, name)
		for from, to := range map[string]string{cert: name + ".crt", key: name + ".key"} {
			if err := os.Rename(from, filepath.Join(dir, to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	s, err := takeSnapshot(cfg, filepath.Join(t.TempDir(), "code"), "")
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := filepath.Glob(filepath.Join(s.Dir, "*.key")); err != nil || len(keys) != 0 {
		t.Errorf("the snapshot has %v, %v", keys, err)
	}
	if certs, err := filepath.Glob(filepath.Join(s.Dir, "*")); err != nil || len(certs) != 6 {
		t.Errorf("the snapshot has %v, %v; want the rest", certs, err)
	}
}
