package room

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

func receives(u Used) int64 { return u.Begun + u.Grown }

// fill has a body grow to size, and says how that ended.
func fill(b *Body, size int64) error {
	piece := make([]byte, 1000)
	for b.Len() < size {
		if err := b.Append(piece[:min(int64(len(piece)), size-b.Len())]); err != nil {
			return err
		}
	}
	return nil
}

// Bodies that stop short of their end hold no more than receives may, and none of them keeps out a small one; one of them comes
// to its end. Red with grow always true (they hold too much), with begin's bytes taken from grown (the small one is out), and
// without an elder (none of the large ones ends).
func TestLargeBodiesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []bool
		r := New(64*mib, 16*mib, func(tight bool, _ Used) { told = append(told, tight) })
		until := time.Now().Add(30 * time.Second)
		results := make(chan error, 100)
		var bodies []*Body
		for range cap(results) {
			b := r.Body(16*mib, until, nil)
			bodies = append(bodies, b)
			go func() { results <- fill(b, 16*mib-1) }()
		}
		synctest.Wait()
		if got := receives(r.Used()); got > 32*mib {
			t.Errorf("%d bytes are taken, want no more than half of the room", got)
		}
		if got := len(results); got != 1 {
			t.Errorf("%d of the large bodies have arrived, want the elder alone", got)
		}
		small := r.Body(16*mib, until, nil)
		if err := fill(small, 3000); err != nil || time.Now().After(until) {
			t.Errorf("a small body: %v", err)
		}
		small.Free()
		if err := r.Take(t.Context(), 32*mib); err != nil {
			t.Errorf("work: %v", err)
		}
		r.Give(32 * mib)
		for i := range cap(results) {
			if err := <-results; i > 0 && !errors.Is(err, ErrFull) {
				t.Errorf("a large body that nothing made room for: %v", err)
			}
		}
		if !time.Now().Equal(until) {
			t.Errorf("they waited until %v, want %v", time.Now(), until)
		}
		for _, b := range bodies {
			b.Free()
		}
		if got := r.Used(); got != (Used{}) {
			t.Errorf("%+v is taken in the end", got)
		}
		if len(told) != 2 || !told[0] || told[1] {
			t.Errorf("told %v, want that there was no room, and that there was again", told)
		}
	})
}

// Those who wait get what the elder gives back, one after the other, until all have arrived. Red with the elder queued behind
// those who wait for it, and without serve in leave.
func TestOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(0, 16*mib, nil)
		var all sync.WaitGroup
		until := time.Now().Add(time.Minute)
		for range 20 {
			all.Go(func() {
				b := r.Body(16*mib, until, nil)
				defer b.Free()
				for b.Len() < 15*mib {
					if err := fill(b, b.Len()+100_000); err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond) // of the bubble
				}
			})
		}
		all.Wait()
		if got := r.Used(); got != (Used{}) {
			t.Errorf("%+v is taken in the end", got)
		}
	})
}

// Who is gone waits no more, and gives its turn to the next. Red without gone in await, and without serve in wait.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(40*mib, 10*mib, nil) // 5 MiB to grow in, beside the elder's
		until, gone := time.Now().Add(time.Minute), make(chan struct{})
		var bodies []*Body
		reserve := func(size int64) <-chan error {
			b, ended := r.Body(10*mib, until, gone), make(chan error, 1)
			bodies = append(bodies, b)
			if len(bodies) != 4 {
				b.gone = nil
			}
			go func() { ended <- b.Reserve(size) }()
			synctest.Wait()
			return ended
		}
		reserve(2 * mib)
		reserve(2 * mib)
		reserve(2 * mib)
		if r.elder != bodies[2] {
			t.Fatal("the third is the elder: it did not fit beside the others")
		}
		bodies[0].Free()
		first, second := reserve(4*mib), reserve(mib/2)
		if len(first)+len(second) != 0 {
			t.Error("one did not wait, or overtook another")
		}
		close(gone)
		if err := <-first; !errors.Is(err, ErrGone) {
			t.Errorf("gone while it waited: %v", err)
		}
		if err := <-second; err != nil || !time.Now().Before(until) {
			t.Errorf("behind one who is gone: %v", err)
		}
		for _, b := range append(bodies, bodies...) { // twice does no harm
			b.Free()
		}
		if got := r.Used(); got != (Used{}) {
			t.Errorf("%+v is taken in the end", got)
		}
	})
}

// Work has its half, whatever arrives; a body that is larger than all of it has its turn alone. Red without Work != 0 in Take.
func TestWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(8*mib, mib, nil)
		if err := r.Take(t.Context(), 10*mib); err != nil {
			t.Fatal(err)
		}
		if r.Try(1) {
			t.Error("took more than there is without waiting")
		}
		if err := r.Take(t.Context(), Beginning); err != nil {
			t.Errorf("a small body: %v", err)
		}
		taken := make(chan error, 1)
		go func() { taken <- r.Take(t.Context(), 4*mib) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Take(ctx, 4*mib); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("work that found no room: %v", err)
		}
		r.Give(Beginning)
		synctest.Wait()
		if len(taken) != 0 {
			t.Error("took more than there is")
		}
		r.Give(10 * mib)
		if err := <-taken; err != nil {
			t.Error(err)
		}
		if r.Try(1) {
			t.Error("took more than there is without waiting")
		}
		r.Give(4 * mib)
		if !r.Try(4 * mib) {
			t.Error("there is room")
		}
		r.Give(4 * mib)
	})
}

// Whatever comes and goes, no share is overdrawn, and all of it is there again at the end.
func TestRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		r := New(2*mib, mib/2, nil)
		var all sync.WaitGroup
		check := func() {
			if u := r.Used(); u.Begun > 2*mib/8 || u.Grown > 3*2*mib/8 || u.Work > mib || min(u.Begun, u.Grown, u.Work) < 0 {
				t.Errorf("overdrawn: %+v", u)
			}
		}
		for i := range 60 {
			draw := rand.New(rand.NewPCG(seed, uint64(i)))
			all.Go(func() {
				for range 50 {
					wait := time.Duration(draw.IntN(int(20 * time.Millisecond)))
					if i%3 == 0 {
						n := Beginning + 1 + draw.Int64N(mib/2)
						if r.Take(t.Context(), n) == nil {
							check()
							time.Sleep(wait) // of the bubble
							r.Give(n)
						}
						continue
					}
					gone := make(chan struct{})
					if draw.IntN(4) == 0 {
						time.AfterFunc(wait/2, func() { close(gone) })
					}
					b := r.Body(mib/2, time.Now().Add(2*wait), gone)
					_ = fill(b, draw.Int64N(mib/2))
					check()
					time.Sleep(wait)
					b.Free()
				}
			})
		}
		all.Wait()
		if got := r.Used(); got != (Used{}) {
			t.Errorf("%+v is taken in the end", got)
		}
	})
}
