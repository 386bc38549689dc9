// Package http receives and delivers messages over HTTP/1.1, each as the body of one request.
//
// Inbound commits each message before it answers 200. What it could not commit it answers with 503, or, where the commit
// may have happened, not at all, so that the sender sends again; it never answers such a message with a status by which a
// sender would give up on it. Outbound takes 2xx for a delivery and 4xx for a rejection; everything else is tried again.
// It names the delivery in a header, so that a receiver can tell a repeat.
package http

import "time"

// Defaults for what a configuration leaves zero.
const (
	DefaultMaxMessage    = 16 << 20  // bytes
	DefaultRoom          = 512 << 20 // bytes, of an inbound that shares with none
	DefaultHeaderTimeout = 10 * time.Second
	DefaultBodyTimeout   = 30 * time.Second
	DefaultIdleTimeout   = 5 * time.Minute
	DefaultWriteTimeout  = 10 * time.Second
	DefaultTimeout       = 30 * time.Second
	DefaultContentType   = "application/octet-stream"
)

// maxHeader caps the header of a request that comes in, and of an answer, in bytes.
const maxHeader = 64 << 10
