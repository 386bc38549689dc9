package config

import (
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// readMLLPIn and its like read what one connection says.
func readMLLPIn(t table) *MLLPIn {
	return &MLLPIn{Listen: t.address("listen"), MaxMessage: t.size("max_message"), Ack: t.choice("ack"), Peers: t.peers("peers"), TLS: t.tlsIn()}
}

func readHTTPIn(t table) *HTTPIn {
	in := &HTTPIn{Listen: t.address("listen"), Path: t.urlPath("path"), MaxMessage: t.size("max_message"), Peers: t.peers("peers"), TLS: t.tlsIn()}
	if n := t.value("auth_header", aString, `"Authorization: Bearer ${TOKEN}"`); n != nil {
		name, value, ok := strings.Cut(n.text, ":")
		if value = strings.TrimSpace(value); !ok || !headerName(name) || value == "" || !headerValue(value) {
			t.report(n.at, "auth_header", `write a name, a colon and a value, such as "Authorization: Bearer ${TOKEN}"`,
				"auth_header: %s is not a header", show(n.source, `"`))
		}
		in.AuthHeader = n.text
	}
	return in
}

func readMLLPOut(t table) *MLLPOut {
	return &MLLPOut{Connect: t.address("connect"), AckTimeout: t.duration("ack_timeout"), Connection: t.choice("connection"), TLS: t.tlsOut()}
}

func readHTTPOut(t table) *HTTPOut {
	out := &HTTPOut{URL: t.url("url"), Method: t.choice("method"), ContentType: t.contentType("content_type"), Headers: t.headers("headers"),
		Timeout: t.duration("timeout"), Connection: t.choice("connection"), TLS: t.tlsOut()}
	if n := t.child("tls"); n != nil && strings.HasPrefix(out.URL, "http:") {
		t.report(n.key, "tls", "write https:// in url, or leave tls out", "tls goes with https, and url is http")
	}
	return out
}

func (t table) tlsIn() *TLSIn {
	if !t.has("tls") {
		return nil
	}
	s := t.table("tls")
	return &TLSIn{Cert: s.file("cert"), Key: s.file("key"), ClientCA: s.file("client_ca")}
}

func (t table) tlsOut() *TLSOut {
	if !t.has("tls") {
		return nil
	}
	s := t.table("tls")
	out := &TLSOut{CA: s.file("ca"), Cert: s.file("cert"), Key: s.file("key")}
	s.together("cert", "key", `key = "client.key"`)
	s.together("key", "cert", `cert = "client.crt"`)
	if n := s.value("server_name", aString, `"emr.example.org"`); n != nil {
		if n.text == "" || strings.ContainsFunc(n.text, notInHost) || strings.Contains(n.text, ":") {
			s.report(n.at, "server_name", "write the name alone, such as \"emr.example.org\"", "server_name: %s is not a host's name", show(n.source, `"`))
		}
		out.ServerName = n.text
	}
	return out
}

// together reports a key that is given without its companion.
func (t table) together(given, missing, example string) {
	if n := t.child(given); n != nil && !t.has(missing) {
		t.report(n.key, given, "add: "+example, "%s goes with %s", given, missing)
	}
}

// peers reads addresses and networks; nil: not given.
func (t table) peers(name string) []netip.Prefix {
	n := t.value(name, anArray, `["10.0.0.0/8", "127.0.0.1"]`)
	if n == nil {
		return nil
	}
	if len(n.elems) == 0 {
		t.report(n.at, name, "leave it out to let everybody connect", "%s is empty: nobody could connect", name)
	}
	var all []netip.Prefix
	for _, e := range n.elems {
		if e.kind != aString {
			t.report(e.at, name, "", "%s must be an array of strings; it has %s in it", name, e.kind)
			continue
		}
		p, ok := network(e.text)
		if !ok {
			t.report(e.at, name, `write an address, or a network without bits of a host, such as "192.0.2.7", "10.0.0.0/8" or "fd00::/8"`,
				"%s: %s is not an address or network", name, show(e.source, `"`))
			continue
		}
		all = append(all, p)
	}
	return all
}

// network reads an address or a network. An IPv4 one in the form of IPv6 would never be met: peers have their own form.
func network(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	return p, p == p.Masked() && !p.Addr().Is4In6()
}

// url reads where an outbound sends to. What it says of itself belongs into headers, where no error shows it.
func (t table) url(name string) string {
	n := t.value(name, aString, `"https://emr.example.org/hl7"`)
	if n == nil {
		return ""
	}
	u, err := url.Parse(n.text)
	shown := show(n.source, `"`)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Fragment != "", u.Opaque != "", !portOrNone(u.Port()):
		t.report(n.at, name, `write it whole, such as "https://emr.example.org/hl7"`, "%s: %s is not http://HOST/PATH or https://HOST/PATH", name, shown)
	case u.User != nil:
		t.report(n.at, name, `write headers = { Authorization = "Basic ${CREDENTIALS}" }`, "%s: %s has a user in it", name, shown)
	default:
		return n.text
	}
	return ""
}

func portOrNone(port string) bool {
	number, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && number > 0
}

// urlPath reads the path on which an inbound takes messages, as it is once it is decoded.
func (t table) urlPath(name string) string {
	n := t.value(name, aString, `"/hl7"`)
	if n == nil {
		return t.spec(name).def
	}
	if !strings.HasPrefix(n.text, "/") || strings.ContainsFunc(n.text, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("?#%", r) }) {
		t.report(n.at, name, `write a path that begins with /, without query and without %, such as "/hl7"`, "%s: %s is not a path of a URL", name, show(n.source, `"`))
	}
	return n.text
}

func (t table) contentType(name string) string {
	n := t.value(name, aString, `"application/hl7-v2"`)
	if n == nil {
		return t.spec(name).def
	}
	if n.text == "" || !headerValue(n.text) {
		t.report(n.at, name, "", "%s: %s is not a content type", name, show(n.source, `"`))
	}
	return n.text
}

// ours are the headers that an outbound writes itself, or that belong to the connection.
func ours() []string {
	return []string{"Host", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer",
		"Upgrade", "Expect", "Coppice-Delivery", "Idempotency-Key", "X-Idempotency-Key"}
}

// headers reads the headers that every request has; never nil.
func (t table) headers(name string) map[string]string {
	all := map[string]string{}
	sub := t.table(name)
	if sub.node == nil {
		return all
	}
	for _, each := range sub.node.names {
		n := sub.node.kids[each]
		canonical := textproto.CanonicalMIMEHeaderKey(each)
		_, twice := all[canonical]
		switch {
		case !headerName(each):
			sub.r.report(n.key, sub.under(each), "", "%s is not a header's name", show(each, `"`))
		case canonical == "Content-Type":
			sub.r.report(n.key, sub.under(each), "use content_type", "the header %s has a key of its own", canonical)
		case slices.Contains(ours(), canonical):
			sub.r.report(n.key, sub.under(each), "leave it out", "the header %s is not the same for all deliveries, or not yours to set", canonical)
		case twice:
			sub.r.report(n.key, sub.under(each), "", "the header %s is here twice: case makes no difference", canonical)
		case n.kind != aString:
			sub.r.report(n.at, sub.under(each), "", "the header %s must be a string, not %s", each, n.kind)
		case n.text == "" || !headerValue(n.text):
			sub.r.report(n.at, sub.under(each), "", "the header %s cannot have the value %s", each, show(n.source, `"`))
		}
		all[canonical] = n.text
	}
	return all
}

// headerName says whether s is a token of RFC 9110.
func headerName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// headerValue says whether s can be the value of a header: one line, without white space around it.
func headerValue(s string) bool {
	return s == strings.TrimSpace(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
