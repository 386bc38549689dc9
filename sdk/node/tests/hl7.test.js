// HL7 messages keep every byte that was not set.

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { HL7, NotHL7 } from "../hl7.js";
import { decodeText } from "../text.js";

const SAMPLES = new URL("../../../../shared/samples/", import.meta.url);
const BODY = "MSH|^~\\&|A|B|||20260102||ADT^A01|C1|P|2.3\rPID|1||111^^^X&Y&Z~222^^^W||DOE^JOHN\rPV1|1|I|2000^A\rOBX|1\rOBX|2||x\r";
const hl7 = (raw) => new HL7(Buffer.from(raw, "latin1"));
const raw = (h) => h.toBuffer().toString("latin1");

test("get", () => {
  const h = hl7(BODY);
  for (const [path, want] of Object.entries({
    "MSH-1": "|", "MSH-2": "^~\\&", "MSH-3": "A", "MSH-9": "ADT^A01", "MSH-9.2": "A01", "PID-3": "111^^^X&Y&Z~222^^^W",
    "PID-3.1": "111", "PID-3.4": "X&Y&Z", "PID-3.4.2": "Y", "PID-3[2]": "222^^^W", "PID-3[2].4": "W", "PID-3[2].4.1": "W",
    "PID-3[3].1": "", "PID-99": "", "PID-1.2": "", "OBX[2]-3": "x", "OBX[3]-1": "", "ZZZ-1": "", "pid-1": "1",
  })) {
    assert.equal(h.get(path), want, path);
  }
  assert.deepEqual([h.count("OBX"), h.has("PV1"), h.has("ZZZ"), h.get("ZZZ-1", "none")], [2, true, false, "none"]);
  assert.equal(raw(h), BODY);
});

test("set", () => {
  for (const [path, value, old, now] of [
    ["PV1-3.4", "MERCY", "PV1|1|I|2000^A\r", "PV1|1|I|2000^A^^MERCY\r"], ["PID-3[2].1", "9", "~222^", "~9^"],
    ["PID-3.4.2", "", "X&Y&Z", "X&&Z"], ["OBX[2]-5", "a^b~c", "OBX|2||x\r", "OBX|2||x||a^b~c\r"], ["MSH-9.2", "A08", "A01", "A08"],
    ["PID-5.1", "M\xfcller", "DOE", "M\xc3\xbcller"], ["PID-5[2].2", "J", "DOE^JOHN", "DOE^JOHN~^J"],
  ]) {
    const h = hl7(BODY);
    h.set(path, value);
    assert.equal(raw(h), BODY.replace(old, () => now), path);
    assert.equal(h.get(path), value);
  }
});

// Red with #refuseSeparators emptied.
test("refused", () => {
  const h = hl7(BODY);
  for (const [path, value, error] of [
    ["PID-3", "a|b", RangeError], ["PID-3.1", "a^b", RangeError], ["PID-3.1", "a~b", RangeError], ["PID-3.1.1", "a&b", RangeError],
    ["PID-3", "a\rb", RangeError], ["PID-3", "a\nb", RangeError], ["MSH-1", "#", RangeError], ["MSH-2", "x", RangeError],
    ["ZZZ-1", "x", RangeError], ["PID-3", 1, TypeError], ["PID", "x", TypeError], ["PID-0", "x", TypeError], [3, "x", TypeError],
  ]) {
    assert.throws(() => h.set(path, value), error, `${path}: ${value}`);
  }
  assert.equal(raw(h), BODY);
  for (const body of ["", "MSH", "PID|1", "{}", "\x0bMSH|^~\\&|"]) {
    assert.throws(() => hl7(body), NotHL7);
  }
});

test("escape", () => {
  const h = hl7(BODY);
  const text = "a|b^c~d\\e&f";
  assert.equal(h.escape(text), "a\\F\\b\\S\\c\\R\\d\\E\\e\\T\\f");
  assert.equal(h.unescape(h.escape(text)), text);
  assert.equal(h.unescape("\\H\\x\\.br\\"), "\\H\\x\\.br\\");
  h.set("PID-5.1", h.escape(text));
  assert.equal(h.unescape(h.get("PID-5.1")), text);
});

test("bytes that are no UTF-8", () => {
  const h = hl7("MSH|^~\\&|\xe9\xff\xed\xa0\x80\rPID|1||\xe9");
  h.set("PID-2", h.get("MSH-3"));
  assert.equal(raw(h), "MSH|^~\\&|\xe9\xff\xed\xa0\x80\rPID|1|\xe9\xff\xed\xa0\x80|\xe9");
  const latin = hl7("MSH|^~\\&" + "|".repeat(16) + "8859/1\rPID|1||\xe9");
  assert.equal(latin.get("PID-3"), "\xe9");
  latin.set("PID-3", "\xfc");
  assert.ok(raw(latin).endsWith("PID|1||\xfc"));
  latin.set("PID-4", "\udcff"); // a byte of a message in UTF-8 stays that byte
  assert.ok(raw(latin).endsWith("PID|1||\xfc|\xff"));
  for (const text of ["\u20ac", "\ud83d\udcff", "\udc7f", "\ud800"]) {
    assert.throws(() => latin.set("PID-3", text), /^RangeError: PID-3: .* is not in Latin-1/);
  }
  for (const text of ["\udc7f", "a\ud800", "\udd00"]) {
    assert.throws(() => h.set("PID-3", text), /^RangeError: PID-3: .* is not in UTF-8/);
  }
  const odd = hl7("MSH|^~\x80&|");
  assert.equal(odd.unescape("\udc80F\udc80"), "|");
  const pair = "\ud83d\udc80F\udc80"; // the half of a pair is no escape character. Red without u in unescape
  assert.equal(odd.unescape(pair), pair);
});

test("odd separators, ends and marks", () => {
  for (const body of [
    "MSH#*+!%#A\nPID#1##1*2+3\n", "\xef\xbb\xbfMSH|^~\\&|A\r\nPID|1\r\n", "MSH|\rPID|1^2", "MSH|^~\\&|A\rPID|1\nPV1|2\r\n\r\r",
    "FHS|^~\\&|X\rBHS|^~\\&|Y\rMSH|^~\\&|Z\r", "MSH|^~\\\\&|A\rPID|a\\b&c", "MSH|^|A\rPID|a^b~c",
  ]) {
    keeps(body);
  }
  const h = hl7("MSH#*+!%#A\nPID#1##1*2+3\n");
  assert.deepEqual([h.get("PID-3.2"), h.get("PID-3[2].1"), h.get("MSH-1")], ["2", "3", "#"]);
});

/** Reading every path and setting what is there to itself changes no byte; another value changes its own alone. */
function keeps(body) {
  const h = hl7(body);
  assert.equal(raw(h), body);
  for (const path of paths(body, h.field)) {
    const old = h.get(path);
    if (old !== "") {
      h.set(path, old);
      assert.equal(raw(h), body, path);
      h.set(path, "ZQZ");
      assert.equal(h.get(path), "ZQZ");
      h.set(path, old);
    }
  }
  assert.equal(raw(h), body);
}

/** A path to every field, its first repetition and its first components, and to some beyond. */
function* paths(body, field) {
  const seen = new Map();
  for (const segment of body.replace(/^\xef\xbb\xbf/, "").split(/\r\n|\r|\n/)) {
    const name = segment.split(field)[0];
    if (!/^[A-Z0-9]{3}$/.test(name)) {
      continue;
    }
    seen.set(name, (seen.get(name) ?? 0) + 1);
    const first = ["MSH", "FHS", "BHS"].includes(name) ? 3 : 1;
    for (let n = first; n <= segment.split(field).length + 1; n++) {
      for (const below of ["", "[1]", "[2].1", ".1", ".2.1"]) {
        yield `${name}[${seen.get(name)}]-${n}${below}`;
      }
    }
  }
}

test("samples", { skip: existsSync(new URL("INDEX.csv", SAMPLES)) ? false : "missing: samples: shared/samples/INDEX.csv beside the checkout" }, () => {
  const names = readdirSync(SAMPLES).filter((name) => name.endsWith(".hl7"));
  assert.ok(names.length > 15);
  for (const name of names) {
    keeps(readFileSync(new URL(name, SAMPLES), "latin1"));
  }
});

// protocol/hl7/cases.json, which the helpers of the Python and Go SDKs run as well.
const CASES = new URL("../../../protocol/hl7/cases.json", import.meta.url);
const KEYS = ["name", "body", "hl7", "get", "count", "no_path", "escape", "unescape", "refuse", "set", "bytes"];
const KINDS = { segment: /^RangeError: .*: the message has no such segment$/, value: /^RangeError: (?!.*no such segment)/ };
const SEPARATORS = /^(MSH|FHS|BHS)(\[\d+\])?-[12](?!\d)/; // which are not set, not even to themselves

// A value of a case: text, or {"hex": ...} for bytes that are not UTF-8.
const value = (v) => (typeof v === "string" ? v : decodeText(Buffer.from(v.hex, "hex").toString("latin1")));

test("the shared cases", async (t) => {
  const cases = JSON.parse(readFileSync(CASES, "utf8"));
  assert.ok(cases.length > 40);
  for (const c of cases) {
    await t.test(c.name, () => {
      assert.deepEqual(Object.keys(c).filter((key) => !KEYS.includes(key)), []);
      if (c.hl7 === false) {
        assert.throws(() => hl7(c.body), NotHL7);
        return;
      }
      const h = hl7(c.body);
      reads(c, h);
      refuses(c, h);
      assert.equal(raw(h), c.body);
      for (const [path, text] of c.set ?? []) {
        h.set(path, value(text));
        assert.equal(h.get(path), value(text), path);
      }
      assert.equal(raw(h), c.bytes ?? c.body);
    });
  }
});

function reads(c, h) {
  for (const [path, want] of Object.entries(c.get ?? {})) {
    assert.equal(h.get(path), value(want), path);
    if (!SEPARATORS.test(path)) {
      h.set(path, h.get(path));
    }
  }
  for (const [segment, want] of Object.entries(c.count ?? {})) {
    assert.deepEqual([h.count(segment), h.has(segment)], [want, want > 0], segment);
  }
  for (const [text, want] of Object.entries(c.escape ?? {})) {
    assert.equal(h.escape(text), want);
  }
  for (const [text, want] of Object.entries(c.unescape ?? {})) {
    assert.equal(h.unescape(text), want);
  }
}

function refuses(c, h) {
  for (const [path, text, kind] of c.refuse ?? []) {
    assert.throws(() => h.set(path, value(text)), KINDS[kind], path);
  }
  for (const path of c.no_path ?? []) {
    assert.throws(() => h.get(path), /is no path/, path);
    assert.throws(() => h.set(path, "x"), /is no path/, path);
  }
}

// A path must not cost what the message is long: without the index this would run into the suite's two minutes.
test("many segments", () => {
  const n = 200_000;
  const lines = Array.from({ length: n }, (_, i) => `OBX|${i + 1}|ST|CODE^TEXT||${i + 1}|a|b\r`);
  const h = hl7("MSH|^~\\&|A\r" + lines.join(""));
  for (let i = 1; i <= n; i += 2) {
    assert.equal(h.get(`OBX[${i}]-5`), String(i));
    h.set(`OBX[${i}]-3.1`, "CHANGED");
  }
  assert.equal(raw(h).split("|CHANGED^TEXT|").length - 1, n / 2);
});

// Nor what its segment is long: with a split of all the fields, this would run into them too.
test("many fields", () => {
  const h = hl7("MSH|^~\\&|A\rOBX|" + "|".repeat(20_000_000));
  for (let i = 0; i < 5000; i++) {
    assert.equal(h.get("OBX-5"), "");
  }
  h.set("OBX-3", "x");
  assert.equal(h.toBuffer().length, 20_000_016);
});
