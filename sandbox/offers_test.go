package sandbox

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"coppice.dev/coppice/wire"
)

// TestNotOffered: a request for a function that the spec does not offer is wrong in itself: no message pays, and no worker is
// started for it. Red without the look at Spec.Offers in Dispatch: the error is then of the program that cannot be started.
func TestNotOffered(t *testing.T) {
	s, err := New(Spec{Command: []string{filepath.Join(t.TempDir(), "none")}, Offers: []wire.Offer{{Phase: wire.PhaseHandle, Name: "admit"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	defer s.Close(ctx)
	_, err = s.Dispatch(ctx, Request{Phase: wire.PhaseHandle, Name: "nope", Message: 1})
	var boot *BootError
	if err == nil || errors.As(err, &boot) || Blame(err) != Nobody {
		t.Errorf("%v, blame %d", err, Blame(err))
	}
}
