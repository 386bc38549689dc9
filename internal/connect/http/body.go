package http

import (
	"errors"
	"io"

	"coppice.dev/coppice/internal/room"
)

// readBody reads in to its end, or fails there as in does, or as the memory does.
func readBody(in io.Reader, to *room.Body) error {
	for {
		space, err := to.Space()
		if err != nil {
			return err
		}
		n, err := in.Read(space)
		to.Filled(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
