package config

// reader fills a Config from nodes and collects what is wrong with them.
type reader struct {
	cfg    *Config
	schema schema
	errs   Errors
	broken map[Pos]bool // strings whose ${NAME} could not be replaced
}

// read fills the Config, table by table.
func (r *reader) read() {
	top := table{r: r, node: r.cfg.root}
	r.cfg.Version = r.readVersion(top)
	r.cfg.Store = readStore(top.table("store"))
	r.cfg.Memory.Bodies = top.table("memory").size("bodies")
	r.cfg.Sandbox = readSandbox(top.table("sandbox"))
	if top.has("alerts") {
		r.cfg.Alerts = readAlerts(top.table("alerts"))
	}
	for name, t := range top.named("inbound") {
		r.cfg.Inbounds = append(r.cfg.Inbounds, readInbound(name, t))
	}
	for name, t := range top.named("handler") {
		r.cfg.Handlers = append(r.cfg.Handlers, readHandler(name, t))
	}
	for name, t := range top.named("outbound") {
		r.cfg.Outbounds = append(r.cfg.Outbounds, readOutbound(name, t))
	}
}

func (r *reader) readVersion(top table) int {
	if top.node.kids["version"] == nil {
		r.report(Pos{1, 1}, []string{"version"}, "begin the file with: version = 1", `the key "version" is missing`)
		return 1
	}
	return top.integer("version")
}

func readStore(t table) Store {
	keep := t.table("retention")
	return Store{
		Path:      t.file("path"),
		MinFree:   t.size("min_free"),
		Retention: Retention{Done: keep.keep("done"), Dead: keep.keep("dead")},
	}
}

func readSandbox(t table) Sandbox {
	return Sandbox{
		Mode:         t.choice("mode"),
		Level:        t.choice("level"),
		Python:       t.interpreter("python"),
		Node:         t.interpreter("node"),
		StartTimeout: t.duration("start_timeout"),
	}
}

func readAlerts(t table) *Alerts {
	a := &Alerts{Webhook: t.url("webhook"), Oldest: t.duration("oldest"), Repeat: t.duration("repeat")}
	if t.has("command") {
		a.Command = t.command("command")
	}
	if t.node != nil && !t.has("command") && !t.has("webhook") {
		t.r.report(t.node.at, t.path, "", "%s needs a command, a webhook or both", t.title())
	}
	return a
}

func readInbound(name string, t table) Inbound {
	in := Inbound{Name: name}
	t.oneOf(groupConnection)
	t.oneOf(groupRoute)
	if t.has("mllp") {
		in.MLLP = readMLLPIn(t.table("mllp"))
	}
	if t.has("http") {
		in.HTTP = readHTTPIn(t.table("http"))
	}
	if t.has("file") {
		in.File = readFileIn(t.table("file"))
	}
	if t.has("router") {
		in.Router = t.ref("router")
	}
	in.Handlers = t.strings("handlers")
	if t.has("duplicates") {
		d := t.table("duplicates")
		in.Duplicates = &Duplicates{Key: d.choice("key"), Within: d.duration("within")}
	}
	in.Split = t.choice("split")
	in.HoldAfter, in.Was = t.integer("hold_after"), t.strings("was")
	return in
}

func readHandler(name string, t table) Handler {
	h := Handler{
		Name:     name,
		To:       t.strings("to"),
		Deadline: t.duration("deadline"),
		Attempts: t.integer("attempts"),
		Settings: t.settings("settings"),
		Protocol: t.choice("protocol"),
		Per:      t.choice("per"),
		Standbys: t.integer("standbys"),

		HoldAfter: t.integer("hold_after"),
		Was:       t.strings("was"),
	}
	limits := t.table("limits")
	h.Limits = Limits{CPU: limits.duration("cpu"), IdleCPU: limits.duration("idle_cpu"), Output: limits.size("output"),
		Memory: limits.size("memory"), Idle: limits.duration("idle")}
	if h.Protocol == "exec" {
		t.workersAlone("per", "standbys")
		limits.workersAlone("idle_cpu", "memory", "idle")
	}
	t.oneOf(groupCode)
	if t.has("run") {
		h.Run = t.ref("run")
		if p := t.node.child("protocol"); p != nil {
			t.report(p.key, "protocol", "", "protocol goes with command, not with run")
		}
	}
	if t.has("command") {
		h.Command = t.command("command")
	}
	return h
}

// workersAlone refuses keys that say what a worker does from one message to the next.
func (t table) workersAlone(names ...string) {
	for _, name := range names {
		if n := t.child(name); n != nil {
			t.report(n.key, name, "", "%s goes with workers: a program with protocol = \"exec\" is executed for each message", name)
		}
	}
}

// refuseParallel refuses parallel where order is kept. Of an order that cannot be made out it says nothing.
func (t table) refuseParallel() {
	if n := t.child("parallel"); n != nil && (t.child("order") == nil || t.child("order").text == "strict") {
		t.report(n.key, "parallel", "say order = \"none\", or leave it out",
			"parallel goes with order = \"none\": in order one delivery of a lane is out at a time")
	}
}

func readOutbound(name string, t table) Outbound {
	out := Outbound{Name: name, Order: t.choice("order"), Parallel: t.integer("parallel"), Was: t.strings("was")}
	if out.Order == "strict" {
		t.refuseParallel()
		out.Parallel = 1
	}
	t.oneOf(groupConnection)
	if t.has("mllp") {
		out.MLLP = readMLLPOut(t.table("mllp"))
	}
	if t.has("http") {
		out.HTTP = readHTTPOut(t.table("http"))
	}
	if t.has("file") {
		f := t.table("file")
		out.File = &FileOut{Dir: f.file("dir"), Name: f.template("name")}
	}
	retry := t.table("retry")
	out.Retry = Retry{
		First:    retry.duration("first"),
		Max:      retry.duration("max"),
		Rejected: retry.integer("rejected"),
		Then:     retry.choice("then"),
	}
	return out
}
