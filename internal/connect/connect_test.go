package connect_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/connect"
)

func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		late, cancel := connect.Grace(ctx, time.Second)
		defer cancel()
		time.Sleep(time.Hour) // of the bubble: it does not end by itself
		stop()
		begin := time.Now()
		<-late.Done()
		if took := time.Since(begin); took != time.Second {
			t.Errorf("ended %v after its parent, want 1s", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		late, cancel := connect.Grace(ctx, time.Second)
		stop()
		cancel() // also within the grace; a goroutine that stayed would fail the bubble
		if late.Err() == nil {
			t.Error("alive after its cancel")
		}
	})
}
