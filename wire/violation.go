package wire

import "fmt"

// Violation is what a peer may never put on the wire. It is fatal to the worker that did it. Name is one of the
// names that protocol/PROTOCOL.md lists; Detail is for people and holds no bytes of the peer's, but the four of
// a length that is text, quoted.
type Violation struct {
	Name   string
	Detail string
}

func (v *Violation) Error() string {
	if v.Detail == "" {
		return "protocol violation: " + v.Name
	}
	return "protocol violation: " + v.Name + ": " + v.Detail
}

func violation(name, format string, args ...any) *Violation {
	return &Violation{Name: name, Detail: fmt.Sprintf(format, args...)}
}

// The names of the violations. Every SDK refuses the same frames by the same names; protocol/vectors hold them to it.
const (
	FrameCap       = "frame-cap"       // the frame's length is over the cap
	FrameCut       = "frame-cut"       // the stream ended inside a frame
	FrameShort     = "frame-short"     // the frame is too short to hold a header length
	HeaderCap      = "header-cap"      // the header's length is over the cap
	HeaderCut      = "header-cut"      // the header runs past the end of the frame
	SegmentCut     = "segment-cut"     // a segment, or its length, runs past the end of the frame
	SegmentCount   = "segment-count"   // more segments than the cap
	SegmentOrder   = "segment-order"   // a segment is referred to out of order: skipped or repeated
	SegmentMissing = "segment-missing" // the header refers to a segment that the frame does not have
	SegmentLeft    = "segment-left"    // the frame has a segment that the header does not refer to
	JSONSyntax     = "json-syntax"     // the header is not JSON, or more than one value
	JSONUTF8       = "json-utf8"       // the header is not valid UTF-8, or escapes half of a surrogate pair
	JSONDepth      = "json-depth"      // nested deeper than the cap
	JSONDuplicate  = "json-duplicate"  // a field or key occurs twice
	JSONField      = "json-field"      // a field that the message does not have
	JSONMissing    = "json-missing"    // a field that the message must have is absent
	JSONType       = "json-type"       // another type of value than is due; null
	JSONNumber     = "json-number"     // a number that is not finite, not whole or out of its range
	BadVersion     = "version"         // the version of the protocol is not ours
	BadType        = "type"            // the type of the message is unknown
	BadDirection   = "direction"       // a message that this side may not send
	BadOrder       = "order"           // a message that may not come now: before its request, or a second answer
	BadID          = "id"              // the answer's id is malformed or is not the request's
	BadPhase       = "phase"           // the answer's phase is unknown or is not the request's
	BadName        = "name"            // the answer's name is empty or is not the request's
	BadForm        = "form"            // the parts of the message do not go together
	Closed         = "closed"          // the worker closed its end of the wire and lives on; judged by package sandbox
)
