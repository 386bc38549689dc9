// What functions return and throw, and the answers that become of it; without a process.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { answer } from "../calling.js";
import { TEXT_CAP } from "../faults.js";
import { Registry } from "../functions.js";
import { HL7 } from "../hl7.js";
import { Context, Drop, Send } from "../index.js";
import { version } from "../version.js";

const REQUEST = {
  name: "f", message: 7, inbound: "adt", msgtype: "ADT^A01", control: "C1", received: "2026-01-02T03:04:05.678901234Z",
  attempt: 2, body: Buffer.from("MSH|^~\\&|A"),
};
const ask = (f, phase = "handle") => answer({ ...REQUEST, phase }, f, new Context({ a: 1 }, 0));
const returning = (value, phase) => ask(() => value, phase);
const sends = (got) => (assert.equal(got.type, "result", JSON.stringify(got)), got.sends.map((s) => [s.to, String(s.body)]));

test("sends", async () => {
  const [a, b] = [new Send("a", "1"), new Send("b", "2")];
  for (const nothing of [undefined, null, [], Promise.resolve()]) {
    assert.deepEqual(await returning(nothing), { type: "result", sends: [] });
  }
  assert.deepEqual(sends(await returning(a)), [["a", "1"]]);
  const generated = function* () { yield a; yield b; };
  const awaited = async function* () { yield a; yield b; };
  for (const f of [() => [a, b], async () => [a, b], generated, awaited, () => new Set([a, b]).values()]) {
    assert.deepEqual(sends(await ask(f)), [["a", "1"], ["b", "2"]]);
  }
});

test("bodies", () => {
  const changing = Buffer.from("abc");
  const send = new Send("a", changing);
  changing[0] = 0;
  assert.equal(String(send.body), "abc");
  for (const [body, want] of [
    [new Uint8Array([120, 121, 122]).subarray(1), "yz"], [new DataView(new ArrayBuffer(1)), "\0"], ["\xe9", "\xc3\xa9"],
    ["a\udcff\u{1f600}", "a\xff\xf0\x9f\x98\x80"], [new HL7(Buffer.from("MSH|^~\\&|\xff", "latin1")), "MSH|^~\\&|\xff"],
  ]) {
    assert.equal(new Send("a", body).body.toString("latin1"), want);
  }
  for (const body of [undefined, null, 1, ["x"], {}]) {
    assert.throws(() => new Send("a", body), /body is a string, a Buffer/);
  }
  assert.throws(() => new Send("a", "\ud800"), /half of a surrogate pair/);
  for (const to of ["", undefined, 3]) {
    assert.throws(() => new Send(to, ""), /name of an outbound/);
  }
});

test("drop", async () => {
  assert.deepEqual(await returning(new Drop("no MRN")), { type: "result", drop: "no MRN" });
  assert.throws(() => new Drop(), TypeError);
});

// Red with either check of a type taken out of sends in calling.js.
test("nonsense", async () => {
  for (const value of [1, "emr", REQUEST.body, {}, true, Send, new Set([new Send("a", "")]), Object.create(null), Symbol("x")]) {
    const { type, error } = await returning(value);
    assert.deepEqual([type, error.type], ["fail", "result"]);
    assert.match(error.text, /^handler "f" returned an? /);
  }
  for (const value of [[1], [new Send("a", ""), undefined], [, new Send("a", "")], [[new Send("a", "")]], [new Drop("x")], [Promise.resolve()]]) {
    const { type, error } = await returning(value);
    assert.deepEqual([type, error.type], ["fail", "result"]);
    assert.match(error.text, /array/);
  }
});

test("routers", async () => {
  const names = function* () { yield "a"; yield "b"; };
  for (const [value, want] of [[undefined, []], ["a", ["a"]], [["a", "b"], ["a", "b"]], [names(), ["a", "b"]]]) {
    assert.deepEqual(await returning(value, "route"), { type: "result", handlers: want });
  }
  for (const value of [1, {}, [1], [""], "", new Send("a", ""), [null]]) {
    assert.equal((await returning(value, "route")).type, "fail");
  }
});

test("message and context", async () => {
  const got = await ask((msg, ctx) => {
    assert.deepEqual([msg.id, msg.inbound, msg.type, msg.controlId, msg.attempt], [7, "adt", "ADT^A01", "C1", 2]);
    assert.equal(msg.received.getTime(), Date.UTC(2026, 0, 2, 3, 4, 5, 678));
    assert.equal(msg.hl7, msg.hl7);
    assert.deepEqual([ctx.settings, ctx.remaining()], [{ a: 1 }, 0]);
    msg.tag({ mrn: "1", visit: 2 });
    msg.tag({ mrn: "3", odd: "\ud800", ["__proto__"]: 5n });
  });
  assert.deepEqual(Object.entries(got.tags), [["mrn", "3"], ["visit", "2"], ["odd", "\ufffd"], ["__proto__", "5"]]);
  for (const value of [null, 1.5, {}, true]) {
    assert.equal((await ask((msg) => msg.tag({ mrn: value }))).error.type, "TypeError");
  }
});

// Red without the try in faults.of.
test("what is thrown", async () => {
  const throws = async (thrown) => (await ask(() => { throw thrown; })).error;
  assert.deepEqual(await throws(null), { type: "thrown", text: "null", traceback: "" });
  assert.equal((await throws("no")).text, "'no'");
  const late = await ask(async () => { await null; throw new RangeError("late"); });
  assert.deepEqual([late.error.type, late.error.text], ["RangeError", "late"]);
  assert.match(late.error.traceback, /functions\.test\.js/);
  assert.doesNotMatch(late.error.traceback, /calling\.js/);
  const evil = () => { throw new Error("evil"); };
  for (const thrown of [
    Object.defineProperty(new Error("x"), "message", { get: evil }), Object.defineProperty(new Error("x"), "stack", { get: evil }),
    Object.assign(new Error("x"), { [Symbol.for("nodejs.util.inspect.custom")]: evil }), new Proxy({}, { get: evil, getPrototypeOf: evil }),
    Object.assign(new Error("x"), { name: { toString: evil } }), Object.create(null),
  ]) {
    const error = await throws(thrown);
    assert.ok(Object.values(error).every((text) => typeof text === "string"));
  }
  const recursive = (msg) => recursive(msg);
  assert.equal((await ask(recursive)).error.type, "RangeError");
});

// Red with faults.head returning what it got.
test("texts are capped", async () => {
  const { error } = await ask(() => { throw new Error("\xe9\ud800".repeat(100_000)); });
  for (const key of ["text", "traceback"]) {
    assert.ok(Buffer.byteLength(error[key]) <= TEXT_CAP, key);
    assert.match(error[key], /\[\.\.\. cut \.\.\.\]$/);
  }
});

test("names", () => {
  const registry = new Registry();
  registry.add("handle", function f() {});
  registry.add("route", function f() {});
  registry.add("handle", () => {}, "drop it");
  assert.deepEqual(registry.offers(), [{ phase: "handle", name: "f" }, { phase: "route", name: "f" }, { phase: "handle", name: "drop it" }]);
  assert.throws(() => registry.add("handle", () => {}, "f"), /two handler functions are named "f"/);
  assert.throws(() => registry.add("handle", () => {}), /needs a name/);
  assert.throws(() => registry.add("handle", "f"), /takes a function/);
});

test("the version is the package's", () => {
  assert.equal(JSON.parse(readFileSync(new URL("../package.json", import.meta.url))).version, version);
});
