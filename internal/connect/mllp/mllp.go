// Package mllp receives and delivers HL7 messages over MLLP, the framing that nearly every hospital system speaks on a
// TCP connection.
//
// Inbound commits each message before it answers; what it could not commit it leaves unanswered and closes the
// connection, so that the sender sends again. Outbound sends one message and waits for its one answer; after anything
// but a clear answer it drops the connection, so that a late answer can answer nothing. MLLP has no place for a delivery's
// id, so a receiver can tell a repeat by the control id alone.
//
// Client is the sender's half by itself, Receiver a small receiver for tests and demonstrations.
package mllp

import (
	"crypto/rand"
	"time"
)

// Defaults for what a configuration leaves zero.
const (
	DefaultMaxMessage     = 16 << 20  // bytes
	DefaultMaxReply       = 1 << 20   // bytes
	DefaultRoom           = 512 << 20 // bytes, of an inbound that shares with none
	DefaultFrameTimeout   = 30 * time.Second
	DefaultIdleTimeout    = time.Hour
	DefaultWriteTimeout   = 10 * time.Second
	DefaultAckTimeout     = 30 * time.Second
	DefaultConnectTimeout = 10 * time.Second
)

// newControlID is an MSH-10 for an answer: 20 characters, which every version allows.
func newControlID() string { return rand.Text()[:20] }
