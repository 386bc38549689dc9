package connecttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect/secure"
)

// Authority signs certificates for one test; nothing of it outlives the test.
type Authority struct {
	File string // its own certificate

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{dir: t.TempDir()}
	a.key = newKey(t)
	a.cert = a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, &a.key.PublicKey)
	a.File = a.write(t, "authority.crt", "CERTIFICATE", a.cert.Raw)
	return a
}

// Issue writes a certificate for 127.0.0.1 and the names, and its key, to files called after base.
func (a *Authority) Issue(t testing.TB, base string, names ...string) (cert, key string) {
	t.Helper()
	k := newKey(t)
	c := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: base}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, &k.PublicKey)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return a.write(t, base+".crt", "CERTIFICATE", c.Raw), a.write(t, base+".key", "PRIVATE KEY", der)
}

// Server is an inbound's side: a certificate of the authority; with mutual it wants one of its peers too.
func (a *Authority) Server(t testing.TB, mutual bool) *secure.Server {
	t.Helper()
	s := &secure.Server{}
	s.Cert, s.Key = a.Issue(t, "server")
	if mutual {
		s.ClientCA = a.File
	}
	return s
}

// Client is an outbound's side: it trusts the authority alone, and with mutual shows a certificate of it.
func (a *Authority) Client(t testing.TB, mutual bool) *secure.Client {
	t.Helper()
	c := &secure.Client{CA: a.File}
	if mutual {
		c.Cert, c.Key = a.Issue(t, "client")
	}
	return c
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// sign completes a certificate and signs it; the authority's own has no parent but itself.
func (a *Authority) sign(t testing.TB, c *x509.Certificate, key *ecdsa.PublicKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = serial, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func (a *Authority) write(t testing.TB, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Secured runs a test in the ways in which the suites go: plain, with nil, and with TLS, of one side and of both.
func Secured(t *testing.T, run func(t *testing.T, server *secure.Server, client *secure.Client)) {
	t.Run("plain", func(t *testing.T) { run(t, nil, nil) })
	for name, mutual := range map[string]bool{"tls": false, "mutual tls": true} {
		t.Run(name, func(t *testing.T) {
			a := NewAuthority(t)
			run(t, a.Server(t, mutual), a.Client(t, mutual))
		})
	}
}
