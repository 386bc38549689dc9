package http

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	nethttp "net/http"
	"strings"
)

// auth is the header that a request must have; the zero value asks for none.
type auth struct {
	name   string
	value  [sha256.Size]byte // hashed, so that a comparison takes as long for any length
	scheme string            // what a sender that was turned away may be told; empty: nothing
}

// parseAuth reads "Name: value". Its error tells nothing of the value.
func parseAuth(header string) (auth, error) {
	if header == "" {
		return auth{}, nil
	}
	name, value, ok := strings.Cut(header, ":")
	value = strings.TrimSpace(value)
	if !ok || name == "" || value == "" || strings.ContainsAny(name, " \t") {
		return auth{}, errors.New("auth_header is not \"Name: value\"")
	}
	a := auth{name: nethttp.CanonicalHeaderKey(name), value: sha256.Sum256([]byte(value))}
	if scheme, _, ok := strings.Cut(value, " "); ok && a.name == "Authorization" && (scheme == "Basic" || scheme == "Bearer") {
		a.scheme = scheme + ` realm="coppice"`
	}
	return a, nil
}

// passes says whether a request's header is the one, once, in a time that tells nothing of it.
func (a auth) passes(header nethttp.Header) bool {
	if a.name == "" {
		return true
	}
	given := header[a.name]
	if len(given) != 1 {
		return false
	}
	sum := sha256.Sum256([]byte(given[0]))
	return subtle.ConstantTimeCompare(sum[:], a.value[:]) == 1
}
