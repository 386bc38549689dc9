package storetest

import (
	"fmt"

	"pgregory.net/rapid"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// testPrinted: what a run printed is told with that run, the router's and each attempt's, and nothing with one that printed nothing. Red
// in SQLite without printed in endRun, and when addPrinted does not look at the run.
func testPrinted(f *fixture) {
	printed := func(out message.Outcome, list ...message.Printed) message.Outcome {
		out.Attempts, out.Printed = 1, list
		return out
	}
	stdout, stderr := message.Printed{Stream: "stdout", Text: "one\ntwo", Left: 7}, message.Printed{Stream: "stderr", Text: "\xff"}
	id := f.receive("adt", "x")
	f.must(f.s.FailRoute(f.ctx(), id, printed(failed("lost"), stderr)))
	f.replay(id, names())
	f.must(f.s.Route(f.ctx(), id, []store.Plan{plan("h"), plan("quiet")}, printed(message.Outcome{State: message.RunSent}, stdout)))
	f.end(id, "h", printed(failed("raised"), stderr, stdout))
	f.end(id, "quiet", filtered(""))
	other := f.routed("adt", "y", plan("h"))
	f.end(other, "h", filtered(""))

	got := ""
	for _, r := range f.timeline(id).Runs {
		got += fmt.Sprintf("%s: %v; ", r.Handler, r.Outcome.Printed)
	}
	equal(f, "printed", got, fmt.Sprintf(": %v; : %v; h: %v; quiet: []; ", []message.Printed{stderr}, []message.Printed{stdout},
		[]message.Printed{stdout, stderr}))
	equal(f, "of another message", len(f.run(other, "h").Outcome.Printed), 0)
}

func drawPrinted(t *rapid.T) (list []message.Printed) {
	for _, stream := range []string{"stdout", "stderr"} {
		if text := rapid.SampledFrom([]string{"", "", "", "a\nb", "später"}).Draw(t, stream); text != "" {
			list = append(list, message.Printed{Stream: stream, Text: text, Left: rapid.Int64Range(0, 9).Draw(t, "left")})
		}
	}
	return list
}
