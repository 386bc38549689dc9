// Package secure makes the TLS configurations of connections from files, for all transports alike: at least TLS 1.2, the
// rest as the standard library thinks best. The files are read when a connection is made ready, so that what is wrong with
// them is known before anything runs, and again when they have changed: a renewed certificate needs no restart.
package secure

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// maxFile caps a file of certificates, in bytes: a bundle of all public roots has a quarter of it.
const maxFile = 1 << 20

// FileError is what is wrong with one of the files; Key is the key of the configuration that names it.
type FileError struct {
	Key string // "cert", "key", "ca" or "client_ca"
	Err error
}

func (e *FileError) Error() string { return "tls " + e.Key + ": " + e.Err.Error() }

// Unwrap returns what was wrong.
func (e *FileError) Unwrap() error { return e.Err }

// Server says which files an inbound shows, and whom it lets in.
type Server struct {
	Cert, Key string // PEM: the certificate with the chain above it, and its key
	ClientCA  string // PEM; when it is set, peers must show a certificate that it signed
}

// Client says how an outbound knows its receiver, and what it shows of itself.
type Client struct {
	CA         string // PEM; empty: the roots of the system
	Cert, Key  string // PEM; empty: nothing is shown
	ServerName string // the name that the receiver's certificate must have; empty: the host that is dialled
}

// Config reads the files and returns the configuration of a listener, which reads them again once they have changed.
func (s Server) Config() (*tls.Config, error) {
	f := &files{paths: named(s.Cert, s.Key, s.ClientCA), read: s.read}
	if _, err := f.config(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// A ticket would let a peer in that a new client_ca does not.
		SessionTicketsDisabled: true,
		GetConfigForClient:     func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.latest(), nil },
	}, nil
}

func (s Server) read() (*tls.Config, error) {
	pair, err := readPair(s.Cert, s.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, Certificates: []tls.Certificate{pair}}
	if s.ClientCA != "" {
		if c.ClientCAs, err = readPool("client_ca", s.ClientCA); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// Config reads the files and returns a function that gives the configuration for one connection to host, with the files
// as they are then.
func (c Client) Config() (func(host string) *tls.Config, error) {
	f := &files{paths: named(c.CA, c.Cert, c.Key), read: c.read}
	if _, err := f.config(); err != nil {
		return nil, err
	}
	return func(host string) *tls.Config {
		config := f.latest().Clone()
		if config.ServerName == "" {
			config.ServerName = host
		}
		return config
	}, nil
}

func (c Client) read() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		pool, err := readPool("ca", c.CA)
		if err != nil {
			return nil, err
		}
		config.RootCAs = pool
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := readPair(c.Cert, c.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Dial connects to addr, "host:port", and, unless config is nil, agrees on TLS, both before ctx ends.
func Dial(ctx context.Context, addr string, config func(host string) *tls.Config) (net.Conn, error) {
	tcp, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil || config == nil {
		return tcp, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err == nil {
		stream := tls.Client(tcp, config(host))
		if err = stream.HandshakeContext(ctx); err == nil {
			return stream, nil
		}
	}
	_ = tcp.Close() // the error that matters is err
	return nil, fmt.Errorf("TLS handshake: %w", err)
}

// Cut closes a connection without TLS's goodbye, which may have to wait for a peer that does not read.
func Cut(conn net.Conn) error {
	if stream, ok := conn.(*tls.Conn); ok {
		conn = stream.NetConn()
	}
	return conn.Close()
}

// files is a configuration and the files that it was read from.
type files struct {
	paths []string
	read  func() (*tls.Config, error)

	mu     sync.Mutex
	now    *tls.Config
	stamps []stamp
}

// stamp is what a file looks like from outside; a file that was changed has another one.
type stamp struct {
	size    int64
	changed time.Time
}

// config returns what the files say. Where they have become unreadable, it returns what they said before, with the error;
// they are looked at again the next time.
func (f *files) config() (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stamps, ok := f.look()
	if f.now != nil && ok {
		return f.now, nil
	}
	fresh, err := f.read()
	if err != nil {
		return f.now, err
	}
	f.now, f.stamps = fresh, stamps
	return f.now, nil
}

// latest is config once it has worked: a certificate that is being replaced is good until its successor is there whole.
func (f *files) latest() *tls.Config {
	config, _ := f.config()
	return config
}

// look returns the files' stamps, and whether they are those of the configuration in hand.
func (f *files) look() (stamps []stamp, same bool) {
	same = len(f.stamps) == len(f.paths)
	for i, path := range f.paths {
		var s stamp
		if info, err := os.Stat(path); err == nil {
			s = stamp{info.Size(), info.ModTime()}
		}
		stamps = append(stamps, s)
		same = same && f.stamps[i] == s
	}
	return stamps, same
}

// named leaves out files that are not given.
func named(paths ...string) []string {
	var all []string
	for _, p := range paths {
		if p != "" {
			all = append(all, p)
		}
	}
	return all
}

func readPair(cert, key string) (tls.Certificate, error) {
	certPEM, err := readFile("cert", cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(certPEM) {
		return tls.Certificate{}, &FileError{"cert", errors.New("holds no certificate in PEM")}
	}
	keyPEM, err := readFile("key", key)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return tls.Certificate{}, &FileError{"key", err}
	}
	return pair, nil
}

func readPool(key, path string) (*x509.CertPool, error) {
	pem, err := readFile(key, path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &FileError{key, errors.New("holds no certificate in PEM")}
	}
	return pool, nil
}

// readFile reads a regular file within the cap: a named pipe would block.
func readFile(key, path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("is not a regular file")
	case info.Size() > maxFile:
		err = fmt.Errorf("is larger than %d bytes", maxFile)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, &FileError{key, err}
	}
	return data, nil
}
