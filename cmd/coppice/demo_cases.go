package main

import (
	"math/rand/v2"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/synth"
)

// demoCase is one message of the demonstration and what has to become of it.
type demoCase struct {
	synth.Message
	want    message.Disposition
	emr     bool // it has to arrive there, once
	archive bool
}

// demoCases makes the 40 messages. Without escape, the message whose handler leaves an orphan is an ordinary one.
func demoCases(seed uint64, escape bool) []demoCase {
	s := synth.New(seed, time.Date(2026, 3, 2, 7, 0, 0, 0, time.UTC))
	done := func(emr bool) demoCase { return demoCase{want: message.Processed, emr: emr, archive: true} }
	failed := demoCase{want: message.Error}
	type kind struct {
		n    int
		make func() synth.Message
		demoCase
	}
	last := kind{1, func() synth.Message { return s.SIU("Bring your referral") }, done(false)}
	if escape {
		last = kind{1, func() synth.Message { return s.SIU(noteEscape) }, failed}
	}
	kinds := []kind{
		{10, func() synth.Message { return s.ADT("A01") }, done(true)},
		{4, func() synth.Message { return s.ADT("A08") }, done(true)},
		{3, func() synth.Message { return s.ADT("A03") }, demoCase{want: message.Unrouted}},
		{7, func() synth.Message { return s.ORU(true) }, done(true)},
		{6, func() synth.Message { return s.ORU(false) }, demoCase{want: message.Filtered}},
		{6, func() synth.Message { return s.SIU("Bring your referral") }, done(false)},
		{1, func() synth.Message { return s.SIU(noteSpin) }, failed},
		{1, func() synth.Message { return s.SIU(noteCrash) }, failed},
		{1, func() synth.Message { return s.SIU(noteOnce) }, done(false)},
		last,
	}
	var order []int
	for i, k := range kinds {
		for range k.n {
			order = append(order, i)
		}
	}
	r := rand.New(rand.NewPCG(seed, 1))
	r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	var cases []demoCase
	for _, i := range order {
		c := kinds[i].demoCase
		c.Message = kinds[i].make()
		cases = append(cases, c)
	}
	return cases
}
