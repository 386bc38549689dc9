// Package vectors reads the golden frames of this folder, which every reader of frames is held to.
package vectors

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
)

// Bytes returns the bytes that a vector writes, in hexadecimal digits, as one string, or as a list of strings and of
// {"repeat": string, "times": number}.
func Bytes(written json.RawMessage) (all []byte, err error) {
	var pieces []json.RawMessage
	if json.Unmarshal(written, &pieces) != nil {
		pieces = []json.RawMessage{written}
	}
	for _, raw := range pieces {
		piece := struct {
			Repeat string
			Times  int
		}{Times: 1}
		if json.Unmarshal(raw, &piece.Repeat) != nil {
			if err := json.Unmarshal(raw, &piece); err != nil {
				return nil, err
			}
		}
		b, err := hex.DecodeString(piece.Repeat)
		if err != nil {
			return nil, err
		}
		all = append(all, bytes.Repeat(b, piece.Times)...)
	}
	return all, nil
}
