// The wire agrees with protocol/vectors: what to accept, what to refuse and by which name.

import assert from "node:assert/strict";
import { test } from "node:test";
import { serve } from "../runner.js";
import { Violation } from "../violation.js";
import { Caps, checkBinding, decode, encode, readFrame } from "../wire.js";
import * as vectors from "./vectors.js";

const decoded = async (data, sender, caps) => decode(await readFrame(vectors.reader(data), caps), sender, caps);

/** The violation's name, or null. */
async function nameOf(run) {
  try {
    await run();
    return null;
  } catch (e) {
    assert.ok(e instanceof Violation, e);
    return e.violation;
  }
}

const hasBig = (value) => typeof value === "bigint" || (Object(value) === value && Object.values(value).some(hasBig));

// Red with any reader of a field taken out of SCHEMAS in wire.js, and without exact() in strictjson.js.
test("accept", async () => {
  for (const v of vectors.load("accept.json")) {
    const caps = new Caps(v.caps);
    const read = vectors.reader(Buffer.concat([vectors.stream(v.hex), Buffer.from("next")]));
    const got = decode(await readFrame(read, caps), v.from, caps);
    assert.equal(read.rest.toString(), "next", `${v.name}: the reader took more than its frame`);
    assert.deepEqual(got, vectors.message(v.message), v.name);
    if (!hasBig({ ...got, body: null })) {
      // An encoder of a worker writes no whole number beyond 2^53.
      assert.deepEqual(await decoded(Buffer.concat(encode(got, new Caps())), v.from, new Caps()), got, v.name);
    }
  }
});

// Red with any single throw in wire.js or strictjson.js taken out, but for two that another stands behind: frame-short in
// readFrame, and the last of word().
test("refuse", async () => {
  for (const v of vectors.load("refuse.json")) {
    assert.equal(await nameOf(() => decoded(vectors.stream(v.hex), v.from, new Caps(v.caps))), v.violation, v.name);
  }
});

// Red with the throw of frame-cut replaced by a break.
test("cut", async () => {
  for (const v of vectors.load("accept.json")) {
    const whole = vectors.stream(v.hex);
    for (let at = 1; at < Math.min(whole.length, 2000); at++) {
      assert.equal(await nameOf(() => decoded(whole.subarray(0, at), v.from, new Caps(v.caps))), "frame-cut", `${v.name}, cut at byte ${at}`);
    }
  }
});

// A complete outer frame with less in it than its inner lengths say. Red with any throw of split taken out.
test("cut inside", async () => {
  const wanted = ["frame-short", "header-cut", "segment-cut", "segment-missing"];
  for (const v of vectors.load("accept.json")) {
    const body = vectors.stream(v.hex).subarray(4);
    for (let at = 0; at < Math.min(body.length, 1000); at++) {
      const name = await nameOf(() => decode(body.subarray(0, at), v.from, new Caps(v.caps)));
      assert.ok(wanted.includes(name), `${v.name}, a frame cut to ${at} bytes: ${name}`);
    }
  }
});

// What the reader would refuse is refused before it is written. Red with any throw of encode taken out.
test("encode keeps the caps", async () => {
  const sends = [{ to: "a", body: Buffer.from("1") }, { to: "b", body: Buffer.from("2") }];
  const two = { type: "result", id: "5f".repeat(16), phase: "handle", name: "a", sends };
  const frame = Buffer.concat(encode(two, new Caps())).length - 4;
  encode(two, new Caps({ frame }));
  for (const [caps, name] of [[{ frame: frame - 1 }, "frame-cap"], [{ header: 20 }, "header-cap"], [{ segments: 1 }, "segment-count"]]) {
    assert.equal(await nameOf(() => encode(two, new Caps(caps))), name);
  }
});

// Red with checkBinding emptied.
test("binding", async () => {
  for (const v of vectors.load("binding.json")) {
    const answer = await decoded(vectors.stream(v.hex), "worker", new Caps());
    assert.equal(await nameOf(() => checkBinding(v.request, answer)), v.violation, v.name);
  }
});

// A promise of 64 MiB allocates for what arrives. Red with read(size - got) in readExactly.
test("promise", async () => {
  const asked = [];
  const read = (n) => (asked.push(n) === 1 ? Buffer.from([4, 0, 0, 0]) : Buffer.alloc(0));
  assert.equal(await nameOf(() => readFrame(read, new Caps())), "frame-cut");
  assert.ok(Math.max(...asked) <= 64 << 10, `asked for ${asked}`);
});

// The file that boot asks for is left out: what is judged here is the order alone. Red with either check of the type in serve
// taken out.
test("order", async () => {
  let judged = 0;
  for (const v of vectors.load("order.json").filter((v) => v.judge === "worker")) {
    const read = vectors.reader(Buffer.concat(v.frames.map((f) => vectors.stream(f.hex))));
    assert.equal(await nameOf(() => serve(read, () => {}, () => {}, () => null)), v.violation, v.name);
    judged++;
  }
  assert.ok(judged > 5);
});

// A name of a type or a field that every object of JavaScript has is none. Red with __proto__: null taken out of a schema.
test("names that every object has", async () => {
  const frame = (header) => {
    const b = Buffer.alloc(8 + header.length, "\0\0\0\0\0\0\0\0" + header, "latin1");
    b.writeUInt32BE(4 + header.length, 0);
    b.writeUInt32BE(header.length, 4);
    return b;
  };
  const boot = (settings) => `{"type":"boot","version":1,"file":"","offers":[],"settings":${settings},"frame_cap":0}`;
  const refused = (header) => nameOf(() => decoded(frame(header), "engine", new Caps()));
  for (const name of ["constructor", "toString", "__proto__"]) {
    assert.equal(await refused(`{"type":"${name}"}`), "type");
    assert.equal(await refused(`{"type":"boot","${name}":1}`), "json-field");
    assert.equal(await refused(`{"type":"boot","version":1,"file":"","offers":[{"${name}":1}]}`), "json-field");
    assert.equal(await refused(boot(`{"${name}":1,"${name}":2}`)), "json-duplicate");
    const { settings } = await decoded(frame(boot(`{"${name}":{"a":-0}}`)), "engine", new Caps());
    assert.deepEqual(Object.entries(settings), [[name, { a: 0 }]]);
  }
});
