package node

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTypes: the package's types take what a handler may be, as strict as TypeScript gets, and refuse what it may not. Red
// with Context.remaining taken out of index.d.ts, and with a Handler that returns any.
func TestTypes(t *testing.T) {
	tsc, err := exec.LookPath("tsc")
	if err != nil {
		t.Skip("missing: tsc")
	}
	dir := t.TempDir()
	if _, err := WriteTo(filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	const imports = `import { handler, router, Send, Drop, type Message, type Context, type HL7 } from "coppice-worker";` + "\n"
	compile := func(files map[string]string) string {
		t.Helper()
		args := []string{"--noEmit", "--strict", "--target", "es2022", "--module", "nodenext"}
		for name, code := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(imports+code), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, name)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, tsc, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if (err == nil) != (len(out) == 0) {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	if out := compile(map[string]string{"right.ts": `
router(function route(msg: Message, ctx: Context) {
  return msg.hl7.get("MSH-9.2") === "A01" && ctx.remaining() > 0 ? ["admit"] : [];
});
handler(async function* admit(msg, ctx) {
  const h: HL7 = msg.hl7;
  h.set("PV1-3.4", String(ctx.settings["facility"]));
  msg.tag({ mrn: h.get("PID-3.1"), attempt: msg.attempt });
  ctx.log.info("admitted %s at %s", msg.id, msg.received.toISOString());
  yield new Send("emr", h);
  yield new Send("archive", msg.body);
});
handler(() => new Drop("no patient"), { name: "other" });
handler(async function nothing() {});
handler(function kept(): readonly Send[] { return [] as const; });
router(() => ["admit", "other"] as const, { name: "both" });
`}); out != "" {
		t.Errorf("refused: %s", out)
	}
	wrong := map[string]string{
		"result.ts":   `handler(function f() { return 42; });`,
		"choice.ts":   `router(function f() { return new Send("emr", "x"); });`,
		"send.ts":     `new Send("emr");`,
		"readonly.ts": `handler(function f(msg) { msg.body = new Uint8Array(); });`,
		"field.ts":    `handler(function f(msg) { msg.mrn; });`,
	}
	out := compile(wrong)
	for name, line := range wrong {
		if !strings.Contains(out, name+"(2,") {
			t.Errorf("%s is not refused: %s", line, out)
		}
	}
}
