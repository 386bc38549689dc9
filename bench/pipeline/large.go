package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
)

// largeSize is what the large producer sends.
const largeSize = 10_000_000

// largeControl is what all of its messages are called.
const largeControl = "LARGE"

// besideBig is what eight small producers get done by themselves, and beside a large one.
type besideBig struct {
	System string  `json:"system"`
	Alone  float64 `json:"alone_per_second"`
	Beside float64 `json:"beside_per_second"`
	Factor float64 `json:"factor"`
	Large  float64 `json:"large_per_second"`
	Acks   times   `json:"ack_alone"`
	Slow   times   `json:"ack_beside"`
}

func (f *far) besideLarge(r *report) error {
	for _, s := range f.systems() {
		if s.name != floorName && s.name != goName {
			continue
		}
		got, err := f.beside(s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		r.Large = append(r.Large, got)
	}
	return nil
}

// beside has small producers alone and beside the large one, in turns. The large one's last messages are done before the next
// turn begins.
func (f *far) beside(s system) (_ besideBig, err error) {
	e, err := f.enter(s, 9)
	if err != nil {
		return besideBig{}, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	small, large := e.senders[:8], e.senders[8]
	var besides []float64
	var slow []float64 // large ones a second
	sum := &entrant{}
	for range f.rounds {
		alone, err := e.bed.run(small, f.each, messageSize, false)
		if err != nil {
			return besideBig{}, err
		}
		e.rates, e.acks = append(e.rates, alone.rate()), append(e.acks, alone.acks()...)
		ctx, stop := context.WithTimeout(context.Background(), patience)
		var work sync.WaitGroup
		var sent int
		var failed error
		work.Go(func() { sent, failed = e.bed.pour(ctx, large) })
		both, err := e.bed.run(small, f.each, messageSize, false)
		stop()
		work.Wait()
		if err = errors.Join(err, failed); err != nil {
			return besideBig{}, err
		}
		besides, sum.acks = append(besides, both.rate()), append(sum.acks, both.acks()...)
		slow = append(slow, float64(sent)*both.rate()/float64(8*f.each))
	}
	out := besideBig{System: s.name, Alone: middle(e.rates), Beside: middle(besides), Large: middle(slow), Acks: timesOf(e.acks), Slow: timesOf(sum.acks)}
	out.Factor = out.Alone / out.Beside
	return out, nil
}

// pour sends large messages until ctx ends, and waits until all of them are done.
func (b *bed) pour(ctx context.Context, c *mllp.Client) (sent int, err error) {
	body := hl7Body(largeControl, largeSize)
	patient, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ; ctx.Err() == nil; sent++ {
		ack, err := c.Exchange(patient, body)
		if err != nil {
			return sent, err
		}
		if ack.Code != hl7.AA {
			return sent, fmt.Errorf("the large message is answered with %s", ack.Code)
		}
	}
	for range sent {
		select {
		case <-b.large:
		case <-patient.Done():
			return sent, errors.New("a large message is acknowledged and not done")
		}
	}
	return sent, nil
}

func middle(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
