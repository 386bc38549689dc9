package config

import (
	"math"
	"time"
)

// form is what a key's value may be, in the words of the reference.
type form string

const (
	formTable    form = "table"
	formNamed    form = "tables, one for each name"
	formString   form = "string"
	formPath     form = "path"
	formAddress  form = "host:port"
	formChoice   form = "one of"
	formInt      form = "integer"
	formDuration form = "duration"
	formKeep     form = "duration or \"forever\""
	formSize     form = "size"
	formStrings  form = "array of strings"
	formRef      form = "reference"
	formSettings form = "table of strings, integers, floats and booleans"
	formURL      form = "URL"
	formURLPath  form = "path of a URL"
	formHeader   form = "`Name: value`"
	formHeaders  form = "table of strings"
	formPeers    form = "array of addresses and networks"
)

// key is one key of coppice.toml. The zero value of a field says nothing about it.
type key struct {
	path     string // dotted; * stands for a name that the user chooses
	name     string // its last part; newSchema sets it
	form     form
	field    string // what it sets, from Config; empty for what is not supported yet
	required bool
	def      string // as written in TOML, without quotes; empty: none, or the doc tells
	example  string // of a path: what an error shows; empty: a folder
	min, max int64  // of integers, durations (ns) and sizes (bytes)
	choices  []choice
	group    string // exactly one key of a group is given
	doc      string // one sentence for the reference

	later bool   // named in the design, refused for now
	hint  string // with later: how to go on without it
}

// choice is one word that a key may hold.
type choice struct {
	name  string
	later bool // refused for now
	hint  string
}

// Groups of keys that exclude one another.
const (
	groupConnection = "connection"
	groupRoute      = "route"
	groupCode       = "code"
)

const (
	millisecond = int64(time.Millisecond)
	minute      = int64(time.Minute)
	hour        = int64(time.Hour)
)

// maxMessage leaves room for a header in a frame of 64 MiB.
const maxMessage = 63 << 20

// schema is all keys by path, and those directly under each pattern (the top level is "") in the order of keyList.
type schema struct {
	key   map[string]key
	under map[string][]key
}

func newSchema() schema {
	s := schema{key: map[string]key{}, under: map[string][]key{}}
	for _, k := range keyList() {
		parent, name, nested := cutLast(k.path, ".")
		if !nested {
			parent, name = "", k.path
		}
		k.name = name
		s.key[k.path] = k
		s.under[parent] = append(s.under[parent], k)
	}
	return s
}

// keyList is the schema as it is written, parents before their children.
func keyList() []key {
	var keys []key
	for _, some := range [][]key{topKeys(), sandboxKeys(), mllpInKeys(), httpInKeys(), inboundKeys(), handlerKeys(),
		mllpOutKeys(), httpOutKeys(), outboundKeys()} {
		keys = append(keys, some...)
	}
	return keys
}

func topKeys() []key {
	return []key{
		{path: "version", form: formInt, field: "Version", required: true, min: 1, max: 1, doc: "The version of this format."},
		{path: "store", form: formTable, doc: "The durable queue."},
		{path: "store.path", form: formPath, field: "Store.Path", def: "var/coppice.db", doc: "The store's file."},
		{path: "store.min_free", form: formSize, field: "Store.MinFree", def: "256MiB", min: 0, max: 1 << 50,
			doc: "The least room on the store's disk: with less, nothing is received until there is more again, and deliveries go on; " +
				"`0B` for no such limit."},
		{path: "store.retention", form: formTable,
			doc: "How long a message is kept once it has ended, with all that belongs to it; what is still to do is never removed."},
		{path: "store.retention.done", form: formKeep, field: "Store.Retention.Done", def: "30d", min: minute, max: 36500 * 24 * hour,
			doc: "Those that are PROCESSED, FILTERED or UNROUTED."},
		{path: "store.retention.dead", form: formKeep, field: "Store.Retention.Dead", def: "90d", min: minute, max: 36500 * 24 * hour,
			doc: "Those that are ERROR."},
		{path: "memory", form: formTable, doc: "What the engine may keep in memory."},
		{path: "memory.bodies", form: formSize, field: "Memory.Bodies", def: "512MiB", min: 1 << 20, max: 1 << 50,
			doc: "What the bodies of messages may take together, one half of it those that arrive, the other those that are worked on and sent; " +
				"at least four times the largest `max_message`. What finds no room waits."},
		{path: "sandbox", form: formTable, doc: "How workers run."},
		{path: "inbound", form: formNamed, doc: "Connections that messages come in by."},
		{path: "handler", form: formNamed, doc: "Functions that transform messages."},
		{path: "outbound", form: formNamed, doc: "Connections that messages leave by."},
		{path: "alerts", form: formTable, doc: "Who is told when something waits."},
		{path: "alerts.command", form: formStrings, field: "Alerts.Command", doc: "A program that is executed for each alert, in the sandbox, with the alert as JSON on stdin."},
		{path: "alerts.webhook", form: formURL, field: "Alerts.Webhook", doc: "Where each alert is posted to, as JSON."},
		{path: "alerts.oldest", form: formDuration, field: "Alerts.Oldest", def: "15m", min: int64(time.Second), max: 365 * 24 * hour,
			doc: "How long a message may wait in a lane before that is an alert."},
		{path: "alerts.repeat", form: formDuration, field: "Alerts.Repeat", def: "1h", min: int64(time.Second), max: 365 * 24 * hour,
			doc: "How often an alert is told again while it lasts."},
	}
}

func sandboxKeys() []key {
	return []key{
		{path: "sandbox.mode", form: formChoice, field: "Sandbox.Mode", def: "subprocess", choices: []choice{
			{name: "subprocess"},
			{name: "off", later: true, hint: `use "subprocess"; only a Go program that embeds package sandbox has functions to call in process`},
			{name: "isolated", later: true, hint: `use "subprocess"`},
		}, doc: "What a worker may do."},
		{path: "sandbox.level", form: formChoice, field: "Sandbox.Level", choices: []choice{
			{name: "atomic"}, {name: "tracked"}, {name: "group"}, {name: "direct"},
		}, doc: "The least containment that will do; left out, the best that the host has."},
		{path: "sandbox.python", form: formString, field: "Sandbox.Python", def: "python3",
			doc: "The interpreter of Python workers: a name to look up on PATH, or a path."},
		{path: "sandbox.node", form: formString, field: "Sandbox.Node", def: "node",
			doc: "The interpreter of JavaScript workers: a name to look up on PATH, or a path."},
		{path: "sandbox.start_timeout", form: formDuration, field: "Sandbox.StartTimeout", def: "10s", min: 10 * millisecond, max: 10 * minute,
			doc: "How long a worker may take from start to ready."},
	}
}

func mllpInKeys() []key {
	keys := []key{
		{path: "inbound.*.mllp", form: formTable, group: groupConnection, doc: "Accept MLLP over TCP."},
		{path: "inbound.*.mllp.listen", form: formAddress, field: "Inbounds.MLLP.Listen", required: true,
			doc: "Where to listen; without a host on all interfaces, with port 0 on any free port."},
		{path: "inbound.*.mllp.max_message", form: formSize, field: "Inbounds.MLLP.MaxMessage", def: "16MiB", min: 1, max: maxMessage,
			doc: "The largest message; a larger one is answered with AR, or in enhanced mode with CR, and the connection is closed."},
		{path: "inbound.*.mllp.ack", form: formChoice, field: "Inbounds.MLLP.Ack", def: "original", choices: []choice{
			{name: "original"}, {name: "enhanced"}, {name: "none"},
		}, doc: `How to acknowledge, once the message is on disk: "original" with AA; "enhanced" as its MSH-15 and MSH-16 ask; "none" not at all.`},
		{path: "inbound.*.mllp.peers", form: formPeers, field: "Inbounds.MLLP.Peers", doc: peersDoc},
	}
	return append(keys, tlsInKeys("inbound.*.mllp", "Inbounds.MLLP")...)
}

const peersDoc = "Whose connections are taken, such as `[\"10.0.0.0/8\", \"127.0.0.1\"]`; left out, everybody's."

func httpInKeys() []key {
	keys := []key{
		{path: "inbound.*.http", form: formTable, group: groupConnection, doc: "Accept messages as bodies of HTTP requests."},
		{path: "inbound.*.http.listen", form: formAddress, field: "Inbounds.HTTP.Listen", required: true,
			doc: "Where to listen; without a host on all interfaces, with port 0 on any free port."},
		{path: "inbound.*.http.path", form: formURLPath, field: "Inbounds.HTTP.Path", def: "/", doc: "The one path that takes messages, by POST or PUT."},
		{path: "inbound.*.http.max_message", form: formSize, field: "Inbounds.HTTP.MaxMessage", def: "16MiB", min: 1, max: maxMessage,
			doc: "The largest body; a larger one is answered with 413."},
		{path: "inbound.*.http.auth_header", form: formHeader, field: "Inbounds.HTTP.AuthHeader",
			doc: "A header that a request must have, such as `\"Authorization: Bearer ${TOKEN}\"`; others are answered with 401. Left out, none."},
		{path: "inbound.*.http.peers", form: formPeers, field: "Inbounds.HTTP.Peers", doc: peersDoc},
	}
	return append(keys, tlsInKeys("inbound.*.http", "Inbounds.HTTP")...)
}

// tlsInKeys are the keys under tls of one listener.
func tlsInKeys(path, field string) []key {
	return []key{
		{path: path + ".tls", form: formTable, doc: "Take TLS connections alone, of version 1.2 or later."},
		{path: path + ".tls.cert", form: formPath, field: field + ".TLS.Cert", required: true, example: "server.crt", doc: "Its certificate in PEM, with the chain above it."},
		{path: path + ".tls.key", form: formPath, field: field + ".TLS.Key", required: true, example: "server.key", doc: "The certificate's key in PEM."},
		{path: path + ".tls.client_ca", form: formPath, field: field + ".TLS.ClientCA",
			doc: "Certificates in PEM; when it is given, a sender must show a certificate that one of them signed."},
	}
}

func inboundKeys() []key {
	return []key{
		{path: "inbound.*.file", form: formTable, group: groupConnection, doc: "Pick up files from a folder."},
		{path: "inbound.*.file.dir", form: formPath, field: "Inbounds.File.Dir", required: true,
			doc: "The folder; subfolders are not searched, and files that are refused go to its subfolder `error`."},
		{path: "inbound.*.file.pattern", form: formString, field: "Inbounds.File.Pattern", def: "*.hl7",
			doc: "Which names to pick up: * stands for any characters, ? for one, [a-z] for one of a range."},
		{path: "inbound.*.file.poll", form: formDuration, field: "Inbounds.File.Poll", def: "1s", min: 10 * millisecond, max: hour,
			doc: "How often to look."},
		{path: "inbound.*.file.stable", form: formDuration, field: "Inbounds.File.Stable", def: "2s", min: 0, max: hour,
			doc: "How long a file must not have changed before it counts as whole."},
		{path: "inbound.*.file.max_message", form: formSize, field: "Inbounds.File.MaxMessage", def: "16MiB", min: 1, max: maxMessage,
			doc: "The largest file; a larger one is refused, and goes to `error` in the folder."},
		{path: "inbound.*.file.after", form: formChoice, field: "Inbounds.File.After", def: "move",
			choices: []choice{{name: "move"}, {name: "delete"}}, doc: "What becomes of a file once its message is on disk."},
		{path: "inbound.*.file.move_to", form: formPath, field: "Inbounds.File.MoveTo",
			doc: "Where `after = \"move\"` moves files; left out, to `done` in the folder."},

		{path: "inbound.*.router", form: formRef, field: "Inbounds.Router", group: groupRoute,
			doc: "The function that chooses handlers for a message."},
		{path: "inbound.*.router.command", form: formStrings, field: "Inbounds.Router.Command", required: true,
			doc: "A worker written with the Go SDK, with its arguments."},
		{path: "inbound.*.router.name", form: formString, field: "Inbounds.Router.Name", required: true,
			doc: "What that worker calls its router."},
		{path: "inbound.*.handlers", form: formStrings, field: "Inbounds.Handlers", group: groupRoute,
			doc: "The handlers that get every message: no router, no dispatch."},
		{path: "inbound.*.nats", later: true, group: groupConnection, hint: "use mllp, http or file"},
		{path: "inbound.*.split", form: formChoice, field: "Inbounds.Split", choices: []choice{{name: "hl7"}},
			doc: "Take an HL7 batch (FHS to FTS, BHS to BTS) for its messages, each a message of its own, received all or none; left out, it is one message."},
		{path: "inbound.*.duplicates", form: formTable, doc: "Acknowledge a message that came before without processing it again; left out, every message is processed."},
		{path: "inbound.*.duplicates.key", form: formChoice, field: "Inbounds.Duplicates.Key", def: "MSH-10", choices: []choice{{name: "MSH-10"}},
			doc: "What has to be the same, besides all bytes of the message. One without it is never a duplicate."},
		{path: "inbound.*.duplicates.within", form: formDuration, field: "Inbounds.Duplicates.Within", required: true, min: int64(time.Second), max: 365 * 24 * hour,
			doc: "For how long a message is remembered; no longer than `store.retention` keeps it."},
		{path: "inbound.*.hold_after", form: formInt, field: "Inbounds.HoldAfter", def: "5", min: 0, max: math.MaxInt16,
			doc: "At how many failures of the router in a row no more messages are routed until `coppice release`; 0 is never."},
		{path: "inbound.*.was", form: formStrings, field: "Inbounds.Was", doc: wasDoc},
	}
}

func handlerKeys() []key {
	return []key{
		{path: "handler.*.run", form: formRef, field: "Handlers.Run", group: groupCode, doc: "A function in a Python file, or a JavaScript file."},
		{path: "handler.*.command", form: formStrings, field: "Handlers.Command", group: groupCode,
			doc: "A worker written with the Go SDK, with its arguments, which offers the handler under the table's name; or, with `protocol = \"exec\"`, any program."},
		{path: "handler.*.protocol", form: formChoice, field: "Handlers.Protocol", def: "wire", choices: []choice{
			{name: "wire"}, {name: "exec"},
		}, doc: "What `command` speaks: `wire` is a worker written with an SDK; `exec` any program, executed for each message, with the body on stdin; " +
			"what it writes to stdout goes to each outbound of `to`."},
		{path: "handler.*.to", form: formStrings, field: "Handlers.To", required: true,
			doc: "All outbounds that the handler may name; `[]` for one that sends nothing."},
		{path: "handler.*.deadline", form: formDuration, field: "Handlers.Deadline", def: "5s", min: millisecond, max: hour,
			doc: "How long one attempt at one message may take."},
		{path: "handler.*.attempts", form: formInt, field: "Handlers.Attempts", def: "2", min: 1, max: 10,
			doc: "How many workers a message may cost before it is poison."},
		{path: "handler.*.per", form: formChoice, field: "Handlers.Per", def: "handler", choices: []choice{
			{name: "handler"}, {name: "inbound"}, {name: "message"},
		}, doc: "Who has a worker of its own: the handler; each inbound, for all of its handlers with the same code and settings that say so; or each message."},
		{path: "handler.*.standbys", form: formInt, field: "Handlers.Standbys", def: "0", min: 0, max: 64,
			doc: "How many workers more are started ahead, to take the place of one that was cut or has served its message."},
		{path: "handler.*.limits", form: formTable, doc: "What a worker, with all that it starts, may use; more is named in the error."},
		{path: "handler.*.limits.cpu", form: formDuration, field: "Handlers.Limits.CPU", min: 10 * millisecond, max: 24 * hour,
			doc: "CPU time, on all cores together, of one attempt; left out, the deadline alone bounds it."},
		{path: "handler.*.limits.idle_cpu", form: formDuration, field: "Handlers.Limits.IdleCPU", def: "5s", min: 10 * millisecond, max: 24 * hour,
			doc: "CPU time between messages, beyond a twentieth of a core; then the worker is replaced, and no message pays."},
		{path: "handler.*.limits.output", form: formSize, field: "Handlers.Limits.Output", def: "64MiB", min: 1, max: 1 << 40,
			doc: "What it may print from one message to the next."},
		{path: "handler.*.limits.memory", form: formSize, field: "Handlers.Limits.Memory", min: 1 << 20, max: 1 << 40,
			doc: "What it may keep resident from one message to the next; then it is replaced, and no message pays. " +
				"It does not bound what one message takes. Left out, there is no limit."},
		{path: "handler.*.limits.idle", form: formDuration, field: "Handlers.Limits.Idle", min: 10 * millisecond, max: 24 * hour,
			doc: "How long it may wait for a message before it is ended; left out, for ever."},
		{path: "handler.*.settings", form: formSettings, field: "Handlers.Settings", doc: "Reaches the handler as `ctx.settings`."},
		{path: "handler.*.hold_after", form: formInt, field: "Handlers.HoldAfter", def: "5", min: 0, max: math.MaxInt16,
			doc: "At how many failures in a row the handler gets no more messages until `coppice release`; 0 is never."},
		{path: "handler.*.was", form: formStrings, field: "Handlers.Was", doc: wasDoc},
	}
}

func mllpOutKeys() []key {
	keys := []key{
		{path: "outbound.*.mllp", form: formTable, group: groupConnection, doc: "Send MLLP over TCP."},
		{path: "outbound.*.mllp.connect", form: formAddress, field: "Outbounds.MLLP.Connect", required: true, doc: "Where to connect."},
		{path: "outbound.*.mllp.ack_timeout", form: formDuration, field: "Outbounds.MLLP.AckTimeout", def: "30s", min: millisecond, max: hour,
			doc: "How long to wait for an acknowledgement before the connection is dropped and the message sent again."},
		{path: "outbound.*.mllp.connection", form: formChoice, field: "Outbounds.MLLP.Connection", def: "persistent", choices: connections(), doc: connectionDoc},
	}
	return append(keys, tlsOutKeys("outbound.*.mllp", "Outbounds.MLLP")...)
}

func connections() []choice { return []choice{{name: "persistent"}, {name: "per_message"}} }

const connectionDoc = "Keep a connection while all goes well, or make one for each message."

func httpOutKeys() []key {
	keys := []key{
		{path: "outbound.*.http", form: formTable, group: groupConnection, doc: "Send each delivery as the body of an HTTP request."},
		{path: "outbound.*.http.url", form: formURL, field: "Outbounds.HTTP.URL", required: true, doc: "Where to send to."},
		{path: "outbound.*.http.method", form: formChoice, field: "Outbounds.HTTP.Method", def: "POST", choices: []choice{{name: "POST"}, {name: "PUT"}},
			doc: "How to send."},
		{path: "outbound.*.http.content_type", form: formString, field: "Outbounds.HTTP.ContentType", def: "application/octet-stream",
			doc: "What the bodies are, such as `application/hl7-v2` or `application/fhir+json`."},
		{path: "outbound.*.http.headers", form: formHeaders, field: "Outbounds.HTTP.Headers",
			doc: "Headers of every request, such as `{ Authorization = \"Bearer ${TOKEN}\" }`."},
		{path: "outbound.*.http.timeout", form: formDuration, field: "Outbounds.HTTP.Timeout", def: "30s", min: millisecond, max: hour,
			doc: "How long a request and its answer may take before the connection is dropped and the message sent again."},
		{path: "outbound.*.http.connection", form: formChoice, field: "Outbounds.HTTP.Connection", def: "persistent", choices: connections(), doc: connectionDoc},
	}
	return append(keys, tlsOutKeys("outbound.*.http", "Outbounds.HTTP")...)
}

// tlsOutKeys are the keys under tls of one connection to a receiver.
func tlsOutKeys(path, field string) []key {
	return []key{
		{path: path + ".tls", form: formTable, doc: "TLS, of version 1.2 or later; `{}` trusts the roots of the system."},
		{path: path + ".tls.ca", form: formPath, field: field + ".TLS.CA", doc: "Certificates in PEM that may have signed the receiver's; left out, the roots of the system."},
		{path: path + ".tls.cert", form: formPath, field: field + ".TLS.Cert", doc: "The certificate in PEM that the receiver is shown; left out, none."},
		{path: path + ".tls.key", form: formPath, field: field + ".TLS.Key", doc: "The key in PEM of `cert`."},
		{path: path + ".tls.server_name", form: formString, field: field + ".TLS.ServerName",
			doc: "The name in the receiver's certificate; left out, the host that is connected to."},
	}
}

func outboundKeys() []key {
	return []key{
		{path: "outbound.*.file", form: formTable, group: groupConnection, doc: "Write each delivery to a file."},
		{path: "outbound.*.file.dir", form: formPath, field: "Outbounds.File.Dir", required: true, doc: "The folder."},
		{path: "outbound.*.file.name", form: formString, field: "Outbounds.File.Name", def: "{id}.hl7",
			doc: "The file's name. `{id}` stands for the delivery's id and has to be in it, as the first or the last of `{id}`, `{message}`, " +
				"`{inbound}`, `{handler}`, `{type}` and `{control_id}`, which stand for what they say."},
		{path: "outbound.*.order", form: formChoice, field: "Outbounds.Order", def: "strict", choices: []choice{
			{name: "strict"},
			{name: "none"},
		}, doc: "`strict`: deliveries from one inbound leave in the order in which their messages came, each after the one before has arrived; " +
			"`none`: in any order, `parallel` at once, and none waits for another."},
		{path: "outbound.*.parallel", form: formInt, field: "Outbounds.Parallel", def: "8", min: 1, max: 64,
			doc: "With `order = \"none\"`, how many deliveries may be out at once, over MLLP each on a connection of its own; " +
				"after a crash as many may repeat."},
		{path: "outbound.*.retry", form: formTable, doc: "What happens when a delivery does not succeed."},
		{path: "outbound.*.retry.first", form: formDuration, field: "Outbounds.Retry.First", def: "1s", min: millisecond, max: hour,
			doc: "The wait after the first failure; it doubles with each one more."},
		{path: "outbound.*.retry.max", form: formDuration, field: "Outbounds.Retry.Max", def: "5m", min: millisecond, max: 24 * hour,
			doc: "The longest wait."},
		{path: "outbound.*.retry.rejected", form: formInt, field: "Outbounds.Retry.Rejected", def: "3", min: 1, max: math.MaxInt16,
			doc: "How often the receiver may answer AE or CE before `then`."},
		{path: "outbound.*.retry.then", form: formChoice, field: "Outbounds.Retry.Then", def: "dead_letter", choices: []choice{
			{name: "dead_letter"},
			{name: "hold"},
		}, doc: "What becomes of a delivery that was rejected for good: `dead_letter` parks it, with the reason, and the lane goes on; " +
			"`hold` keeps it at the head of its lane, which waits until `coppice release`, also where no order is kept."},
		{path: "outbound.*.nats", later: true, group: groupConnection, hint: "use mllp, http or file"},
		{path: "outbound.*.was", form: formStrings, field: "Outbounds.Was", doc: wasDoc},
	}
}

const wasDoc = "Names that it had before: the work that waits for them is its own from the next start or reload on."

// dotted joins a pattern and a name; the pattern may be empty.
func dotted(pattern, name string) string {
	if pattern == "" {
		return name
	}
	return pattern + "." + name
}
