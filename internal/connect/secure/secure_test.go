package secure_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/connect/secure"
)

// greet has both sides of a connection agree on TLS, and returns what the server is called.
func greet(t *testing.T, server *tls.Config, client func(string) *tls.Config) (name string, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(connecttest.Patience))
		_, err = tls.Server(conn, server).Write([]byte("x"))
		served <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), connecttest.Patience)
	defer cancel()
	conn, err := secure.Dial(ctx, l.Addr().String(), client)
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // the server's verdict on a certificate of ours comes after the handshake
		name = conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
		_ = conn.Close()
	}
	return name, errors.Join(err, <-served)
}

func configs(t *testing.T, s secure.Server, c secure.Client) (*tls.Config, func(string) *tls.Config) {
	t.Helper()
	server, err := s.Config()
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// TestWhoIsTrusted: each side believes what it was told to, and nobody else. Red with RequireAndVerifyClientCert changed to
// RequestClientCert, with RootCAs or ServerName left out, and with MinVersion left out on both sides.
func TestWhoIsTrusted(t *testing.T) {
	ours, theirs := connecttest.NewAuthority(t), connecttest.NewAuthority(t)
	named := *ours.Server(t, false)
	named.Cert, named.Key = ours.Issue(t, "named", "emr.example")
	stranger := *theirs.Client(t, true)
	stranger.CA = ours.File
	old := func(config func(string) *tls.Config) func(string) *tls.Config {
		return func(host string) *tls.Config {
			c := config(host)
			c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			return c
		}
	}
	for name, tc := range map[string]struct {
		server *secure.Server
		client secure.Client
		tweak  func(func(string) *tls.Config) func(string) *tls.Config
		ok     bool
	}{
		"one side":              {ours.Server(t, false), *ours.Client(t, false), nil, true},
		"shows what is not due": {ours.Server(t, false), *ours.Client(t, true), nil, true},
		"both sides":            {ours.Server(t, true), *ours.Client(t, true), nil, true},
		"client shows nothing":  {ours.Server(t, true), *ours.Client(t, false), nil, false},
		"a stranger's client":   {ours.Server(t, true), stranger, nil, false},
		"a stranger's server":   {theirs.Server(t, false), *ours.Client(t, false), nil, false},
		"roots of the system":   {ours.Server(t, false), secure.Client{}, nil, false},
		"its name":              {&named, secure.Client{CA: ours.File, ServerName: "emr.example"}, nil, true},
		"another name":          {&named, secure.Client{CA: ours.File, ServerName: "ris.example"}, nil, false},
		"TLS 1.1":               {ours.Server(t, false), *ours.Client(t, false), old, false},
	} {
		server, client := configs(t, *tc.server, tc.client)
		if tc.tweak != nil {
			client = tc.tweak(client)
		}
		if _, err := greet(t, server, client); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRenewed: files that change are read again, at the next connection; what cannot be read leaves the old ones. Red with
// look always the same, and, for the second half, with the error of config handed on.
func TestRenewed(t *testing.T) {
	ours := connecttest.NewAuthority(t)
	s := secure.Server{}
	s.Cert, s.Key = ours.Issue(t, "first")
	server, client := configs(t, s, *ours.Client(t, false))
	want := func(name string) {
		t.Helper()
		if got, err := greet(t, server, client); got != name || err != nil {
			t.Errorf("the server is %q, %v; want %q", got, err, name)
		}
	}
	replace := func(path, with string) {
		t.Helper()
		if err := os.Rename(with, path); err != nil {
			t.Fatal(err)
		}
		later := time.Now().Add(time.Minute) // the clock of a file system may be coarse
		if err := os.Chtimes(path, later, later); err != nil {
			t.Fatal(err)
		}
	}
	want("first")
	cert, key := ours.Issue(t, "second")
	replace(s.Cert, cert)
	want("first") // its key is not there yet
	replace(s.Key, key)
	want("second")
	if err := os.Remove(s.Key); err != nil {
		t.Fatal(err)
	}
	want("second")
}

// TestFiles: what is wrong names the key that names the file. Red, for the folder, without the look at what it is.
func TestFiles(t *testing.T) {
	ours := connecttest.NewAuthority(t)
	cert, key := ours.Issue(t, "one")
	_, other := ours.Issue(t, "other")
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	large := filepath.Join(dir, "large")
	for path, size := range map[string]int{text: 10, large: 2 << 20} {
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := func(s secure.Server) error { _, err := s.Config(); return err }
	client := func(c secure.Client) error { _, err := c.Config(); return err }
	for name, tc := range map[string]struct {
		err error
		key string
	}{
		"no cert":        {server(secure.Server{Cert: filepath.Join(dir, "none"), Key: key}), "cert"},
		"no key":         {server(secure.Server{Cert: cert, Key: filepath.Join(dir, "none")}), "key"},
		"cert is text":   {server(secure.Server{Cert: text, Key: key}), "cert"},
		"key is text":    {server(secure.Server{Cert: cert, Key: text}), "key"},
		"another's key":  {server(secure.Server{Cert: cert, Key: other}), "key"},
		"client_ca":      {server(secure.Server{Cert: cert, Key: key, ClientCA: text}), "client_ca"},
		"large":          {server(secure.Server{Cert: large, Key: key}), "cert"},
		"folder":         {server(secure.Server{Cert: dir, Key: key}), "cert"},
		"ca":             {client(secure.Client{CA: key}), "ca"},
		"client's cert":  {client(secure.Client{Cert: text, Key: key}), "cert"},
		"no client cert": {client(secure.Client{Key: key}), "cert"},
		"no client key":  {client(secure.Client{Cert: cert}), "key"},
	} {
		var file *secure.FileError
		if !errors.As(tc.err, &file) || file.Key != tc.key || name == "folder" && !strings.Contains(tc.err.Error(), "regular") {
			t.Errorf("%s: %v, want an error of %s", name, tc.err, tc.key)
		}
	}
}
