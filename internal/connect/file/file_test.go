package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInboundSuite(t *testing.T) {
	connecttest.Inbound{New: func(t *testing.T, sink connect.Sink) (connect.Inbound, func(context.Context, []byte) error) {
		dir := t.TempDir()
		in := inbound(t, InboundConfig{Dir: dir}, sink)
		var n atomic.Int64
		return in, func(ctx context.Context, body []byte) error {
			name := fmt.Sprintf("%06d.hl7", n.Add(1))
			drop(t, dir, name, body)
			return gone(ctx, filepath.Join(dir, name))
		}
	}}.Run(t)
}

func TestOutboundSuite(t *testing.T) {
	connecttest.Outbound{New: func(t *testing.T) (connect.Outbound, func() [][]byte) {
		dir := filepath.Join(t.TempDir(), "a", "b")
		return outbound(t, OutboundConfig{Dir: dir, NameTemplate: "{id}.hl7"}), func() [][]byte {
			var bodies [][]byte
			for _, name := range names(t, dir) { // sorted, and so in the order of the messages
				body, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				bodies = append(bodies, body)
			}
			return bodies
		}
	}}.Run(t)
}

// inbound makes an inbound with times for a test.
func inbound(t *testing.T, cfg InboundConfig, sink connect.Sink) *Inbound {
	t.Helper()
	cfg.Name = "in"
	if cfg.Poll == 0 {
		cfg.Poll = 20 * time.Millisecond
	}
	if cfg.Stable == 0 {
		cfg.Stable = 5 * time.Millisecond
	}
	in, err := NewInbound(cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func outbound(t *testing.T, cfg OutboundConfig) *Outbound {
	t.Helper()
	cfg.Name = "out"
	o, err := NewOutbound(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// drop puts a file into a folder as a sender should: under another name first.
func drop(t *testing.T, dir, name string, body []byte) {
	t.Helper()
	tmp := filepath.Join(dir, "."+name+".tmp")
	if err := os.WriteFile(tmp, body, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// gone waits until nothing has this path. There is no event to wait on for an observer of a folder.
func gone(ctx context.Context, path string) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func wantGone(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), connecttest.Patience)
	defer cancel()
	if err := gone(ctx, path); err != nil {
		t.Fatalf("%s is still there", path)
	}
}

// wantThere waits until the path is there.
func wantThere(t *testing.T, path string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(connecttest.Patience)
	for {
		if _, err := os.Lstat(path); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s is not there", path)
		}
	}
}

// names are the names in a folder, sorted.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func adt(id string) []byte {
	return []byte("MSH|^~\\&|APP|FAC|||20260101||ADT^A01|" + id + "|P|2.5\rPID|1||" + id + "\r")
}

// link makes a symbolic link, or skips where the system lets nobody.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Skipf("missing: symbolic links: %v", err)
	}
}

func TestOutboundModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	o := outbound(t, OutboundConfig{Dir: dir})
	receipt, err := o.Send(t.Context(), connecttest.Delivery(42, adt("1")))
	if err != nil || receipt.Text != filepath.Join(dir, "0000000042-1") {
		t.Fatalf("Send = %+v, %v", receipt, err)
	}
	for path, want := range map[string]fs.FileMode{dir: 0o700, receipt.Text: 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want && os.PathSeparator == '/' {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
}

// A repeat replaces the file, also what a crash left of its writing, and leaves nothing beside it.
func TestOutboundRepeat(t *testing.T) {
	dir := t.TempDir()
	o := outbound(t, OutboundConfig{Dir: dir, NameTemplate: "{id}.hl7"})
	for _, leftover := range []string{"0000000001-1.hl7", ".0000000001-1.part"} {
		if err := os.WriteFile(filepath.Join(dir, leftover), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		receipt, err := o.Send(t.Context(), connecttest.Delivery(1, adt("1")))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(receipt.Text); err != nil || !bytes.Equal(got, adt("1")) {
			t.Errorf("%q, %v", got, err)
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("folder holds %q", got)
	}
}

// What a stranger plants under the names is replaced, never written through. Red with O_EXCL and the remove before it left
// out: the link under the temporary name is followed to a file of the same folder.
func TestOutboundDoesNotFollowLinks(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	victims := []string{filepath.Join(dir, "victim"), filepath.Join(other, "victim")}
	for _, v := range victims {
		if err := os.WriteFile(v, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"0000000001-1", ".0000000001-1.part"} {
		link(t, "victim", filepath.Join(dir, name))
	}
	for _, name := range []string{"0000000002-1", ".0000000002-1.part"} {
		link(t, victims[1], filepath.Join(dir, name))
	}
	o := outbound(t, OutboundConfig{Dir: dir})
	for n := range 2 {
		if _, err := o.Send(t.Context(), connecttest.Delivery(n+1, adt("1"))); err != nil {
			t.Error(err)
		}
	}
	for _, v := range victims {
		if got, err := os.ReadFile(v); err != nil || string(got) != "precious" {
			t.Errorf("%s holds %q, %v", v, got, err)
		}
	}
}

// An error leaves no file and no temporary one.
func TestOutboundErrorLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "0000000001-1", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := outbound(t, OutboundConfig{Dir: dir}).Send(t.Context(), connecttest.Delivery(1, adt("1")))
	if rejection := (*message.Rejection)(nil); err == nil || errors.As(err, &rejection) {
		t.Errorf("Send = %v, want a plain error", err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("folder holds %q", got)
	}
}

func TestTemplateErrors(t *testing.T) {
	for s, want := range map[string]string{
		"all.hl7":                          "must hold {id}",
		"{message}.hl7":                    "must hold {id}",
		"{id}{id}":                         "must hold {id} once",
		"{id}-{mrn}":                       "unknown placeholder {mrn}",
		"{id":                              "brace",
		"id}":                              "brace",
		"sub/{id}":                         "may not stand",
		`sub\{id}`:                         "may not stand",
		"..{id}":                           "may not stand",
		".{id}":                            "hides",
		"a\x00{id}":                        "may not stand",
		"{id}{type}":                       "after {id}",
		"{id}0":                            "after {id}",
		"{control_id}{id}":                 "before {id}",
		"7{id}":                            "before {id}",
		"{type}-{id}-{control_id}":         "first or the last",
		strings.Repeat("x", 200) + "-{id}": "too long",
		strings.Repeat("x", 152) + "-{id}-{type}": "too long",
	} {
		if _, err := NewOutbound(OutboundConfig{Dir: "out", NameTemplate: s}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", s, err, want)
		}
	}
}

func TestTemplateNames(t *testing.T) {
	d := message.Delivery{Message: 7, Number: 2, Inbound: "adt", Handler: "admit", Type: "ADT^A01", Control: "C1"}
	hostile := d
	hostile.Type, hostile.Control = "CON", "../../etc/pass\x00wd\u202e\r\n"
	long := d
	long.Control = strings.Repeat("ü", 500)
	for _, tc := range []struct {
		template string
		d        message.Delivery
		want     string
	}{
		{"{id}", d, "0000000007-2"},
		{"{inbound}_{handler}_{message}_{type}_{control_id}_{id}.hl7", d, "adt_admit_7_ADT^A01_C1_0000000007-2.hl7"},
		{"{control_id}-{id}", hostile, "__" + "_" + "__" + "_etc_pass_wd___-0000000007-2"},
		{"{type}.{id}", hostile, "_CON.0000000007-2"},
		{"{type}-{id}", message.Delivery{Message: 7, Number: 2, Type: ".x"}, "_x-0000000007-2"},
		{"{id}.{type}", message.Delivery{Message: 7, Number: 2, Type: "x."}, "0000000007-2.x_"},
		{"{id}.{type}", message.Delivery{Message: 7, Number: 2, Type: "."}, "0000000007-2__"},
		{"{id}-{type}", message.Delivery{Message: 7, Number: 2}, "0000000007-2-_"},
		{"{id}-{control_id}", long, "0000000007-2-" + strings.Repeat("ü", 32)},
	} {
		tmpl, err := parseTemplate(tc.template)
		if err != nil {
			t.Fatal(err)
		}
		if got := tmpl.name(tc.d); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.template, got, tc.want)
		}
	}
}

// Whatever a peer puts into its fields, a name is one element of a path, not hidden, not too long, and tells its id apart.
func FuzzTemplate(f *testing.F) {
	f.Add("ADT^A01", "C1", "ADT", "..")
	f.Add("../x", "\x00", "CON", "7-1")
	f.Fuzz(func(t *testing.T, type1, control1, type2, control2 string) {
		for _, s := range []string{"{id}.{type}.{control_id}", "{type}_{control_id}_{id}.hl7"} {
			tmpl, err := parseTemplate(s)
			if err != nil {
				t.Fatal(err)
			}
			one := tmpl.name(message.Delivery{Message: 1, Number: 1, Type: type1, Control: control1})
			two := tmpl.name(message.Delivery{Message: 1, Number: 12, Type: type2, Control: control2})
			if one == two {
				t.Errorf("two deliveries are both called %q", one)
			}
			if !filepath.IsLocal(one) || strings.ContainsAny(one, `/\:`) || one[0] == '.' || strings.Contains(one, "..") || len(one) > maxName {
				t.Errorf("bad name %q", one)
			}
		}
	})
}
