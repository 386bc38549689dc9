// Package echo has the functions that all of Coppice's entrants run: a handler for each lane, which passes a message on.
package echo

import (
	"context"
	"fmt"
	"strings"

	"coppice.dev/coppice/worker"
)

// Lanes is how many lanes have a handler.
const Lanes = 9

// Inbound, Handler and Outbound name what a lane is made of.
func Inbound(lane int) string  { return fmt.Sprintf("in%d", lane) }
func Handler(lane int) string  { return fmt.Sprintf("echo%d", lane) }
func Outbound(lane int) string { return fmt.Sprintf("out%d", lane) }

// Functions are the handlers, in Go.
func Functions() []worker.Function {
	var all []worker.Function
	for lane := range Lanes {
		to := Outbound(lane)
		all = append(all, worker.Handler(Handler(lane), func(_ context.Context, m *worker.Message) (worker.Result, error) {
			return worker.Send(to, m.Body), nil
		}))
	}
	return all
}

// Python are the same in Python.
func Python() []byte {
	var code strings.Builder
	code.WriteString("from coppice_worker import Send, handler\n")
	for lane := range Lanes {
		fmt.Fprintf(&code, "\n\n@handler\ndef %s(message, context):\n    return Send(%q, message.body)\n", Handler(lane), Outbound(lane))
	}
	return []byte(code.String())
}
