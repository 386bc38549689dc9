package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
)

// lanesAlone is a store that has these.
type lanesAlone struct {
	store.Store
	list func() []store.Lane
}

func (l *lanesAlone) Lanes(context.Context) ([]store.Lane, error) { return l.list(), nil }

// TestAlerts: what waits is told once, again while it lasts, and once when it is over; what could not be told is told later; what
// was over before anybody was told is not. Red, each, without the look at told in due, with Repeat left out of it, with an alert
// deleted in clear, with what failed taken for told, and without fails deleted in reached.
func TestAlerts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of what follows
		cfg := &config.Config{File: "coppice.toml", Alerts: &config.Alerts{Oldest: 15 * time.Minute, Repeat: time.Hour}}
		began, got := time.Now(), ""
		var fails error
		var waiting []store.Lane
		set := func(change func()) {
			mu.Lock()
			defer mu.Unlock()
			change()
		}
		a := newAlerts(func() *generation {
			mu.Lock()
			defer mu.Unlock()
			return &generation{cfg: cfg}
		}, slog.New(slog.DiscardHandler))
		a.tell = func(_ context.Context, _ *generation, a Alert) error {
			mu.Lock()
			defer mu.Unlock()
			if fails == nil {
				got += fmt.Sprintf("%v %s %s %s; ", time.Since(began), a.Kind, a.What, a.State)
			}
			return fails
		}
		want := func(what, want string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got != want {
				t.Errorf("%s: told %q, want %q", what, got, want)
			}
			got, began = "", time.Now()
		}
		db := &lanesAlone{list: func() []store.Lane {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(waiting)
		}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			a.run(ctx, db)
		}()
		var o pipeline.Observer
		o = a.observe(o)

		o.Held("handler admit", errors.New("secret"), 0)
		o.Held("handler admit", errors.New("secret"), 0)
		want("held", "0s held handler admit raised; ")
		time.Sleep(61 * time.Minute)
		want("lasts", "1h0m0s held handler admit lasts; ")
		o.Released("handler admit")
		want("released", "0s held handler admit over; ")
		time.Sleep(2 * time.Hour)
		want("after that", "")

		d := message.Delivery{Outbound: "emr"}
		o.Retried(d, errors.New("refused"), 0)
		o.Retried(d, errors.New("refused"), 0)
		o.Sent(d, message.Receipt{})
		o.Retried(d, errors.New("refused"), 0)
		o.Retried(d, errors.New("refused"), 0)
		o.Retried(d, &message.Rejection{Code: "AE"}, 0) // it was reached
		o.Retried(d, errors.New("refused"), 0)
		want("two in a row", "")
		o.Retried(d, errors.New("refused"), 0)
		o.Retried(d, errors.New("refused"), 0)
		want("three", "0s unreachable outbound emr raised; ")
		o.Sent(d, message.Receipt{})
		want("sent", "0s unreachable outbound emr over; ")

		set(func() { fails = errors.New("pager is down") })
		o.Held("outbound emr", nil, 0)
		o.Held("outbound lab", nil, time.Second)
		synctest.Wait()
		o.Released("outbound lab")
		want("not told", "")
		set(func() { fails = nil })
		time.Sleep(lookEvery)
		want("told later", "30s held outbound emr raised; ")
		a.clear(alertHeld, "outbound emr")
		want("over", "0s held outbound emr over; ")

		lane := message.Target{Kind: message.KindOutbound, Name: "emr", Inbound: "adt"}
		set(func() { waiting = []store.Lane{{Target: lane, Waiting: 3, Oldest: time.Now()}} })
		time.Sleep(14 * time.Minute)
		want("waits for 14 minutes", "")
		time.Sleep(2 * time.Minute)
		want("waits for 16 minutes", "1m0s waiting outbound emr, lane of adt raised; ")
		set(func() { waiting[0].Oldest = time.Now() })
		time.Sleep(time.Minute)
		want("gets on", "30s waiting outbound emr, lane of adt over; ")
		o.Held("handler gone", nil, 0)
		o.Held("outbound emr, lane of adt", nil, 0)
		want("held", "0s held handler gone raised; 0s held outbound emr, lane of adt raised; ")
		a.keepDeclared(&config.Config{Inbounds: []config.Inbound{{Name: "adt"}}, Outbounds: []config.Outbound{{Name: "emr"}}})
		want("reloaded without it", "0s held handler gone over; ")
		o.Released("outbound emr, lane of adt")
		want("released", "0s held outbound emr, lane of adt over; ")
		set(func() { cfg = &config.Config{} })
		o.Held("handler admit", nil, 0)
		want("nobody is told", "")
		stop()
		<-ended
		if len(a.open) != 1 {
			t.Errorf("%d are open", len(a.open))
		}
	})
}

const alertTOML = `
version = 1
[alerts]
command = ["./page.sh", %q]
webhook = %q
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
handlers = ["stamp"]
[handler.stamp]
run = "stamp.py:stamp"
to = []
hold_after = 1
`

// TestAlertLeaves: an alert reaches a command and a webhook, and holds no word of what the handler said.
func TestAlertLeaves(t *testing.T) {
	needPython(t)
	if runtime.GOOS == "windows" {
		t.Skip("missing: sh, for the command")
	}
	var mu sync.Mutex
	var posted []string
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		posted = append(posted, r.Header.Get("Content-Type")+" "+string(text))
	}))
	defer hook.Close()
	paged := filepath.Join(t.TempDir(), "paged")
	dir := folder(t, fmt.Sprintf(alertTOML, paged, hook.URL))
	write(t, filepath.Join(dir, "page.sh"), "#!/bin/sh\ncat >>\"$1\"; echo >>\"$1\"\n")
	if err := os.Chmod(filepath.Join(dir, "page.sh"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "stamp.py"), "from coppice_worker import handler\n@handler\ndef stamp(msg, ctx):\n    raise KeyError('secret')\n")
	e := serve(t, dir, Options{})
	exchange(t, dial(t, e.Addr("feed")), numbered(0))
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		text, _ := os.ReadFile(paged)
		return len(posted) == 1 && strings.Count(string(text), "\n") == 1
	})
	text, err := os.ReadFile(paged)
	if err != nil {
		t.Fatal(err)
	}
	if want := "application/json " + strings.TrimSpace(string(text)); posted[0] != want || strings.Contains(want, "secret") {
		t.Errorf("posted %q, paged %q", posted[0], text)
	}
	var a Alert
	if err := json.Unmarshal(text, &a); err != nil || a.Kind != alertHeld || a.What != "handler stamp" || a.State != "raised" || a.Feed == "" {
		t.Errorf("paged %s: %+v, %v", text, a, err)
	}
	if _, err := e.Release(t.Context(), message.Target{Kind: message.KindHandler, Name: "stamp"}, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(posted) == 2 && strings.Contains(posted[1], `"state":"over"`)
	})
}
