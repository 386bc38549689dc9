// Frames and the messages in them: what PROTOCOL.md says, nothing else. Every refusal is a Violation.
//
// A message is an object with the names of its fields on the wire; a body in it is a Buffer. A whole number that a number
// does not hold exactly is a bigint.

import { INT64_MAX, Parser, put } from "./strictjson.js";
import { scrub } from "./text.js";
import { Violation } from "./violation.js";

export const VERSION = 1;
const FIRST_READ = 64 << 10; // a peer that promises 64 MiB and sends nothing costs this much
const ID = /^(?!0{32})[0-9a-f]{32}$/;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bounds what is accepted from a peer and what is sent to one. */
export class Caps {
  constructor({ frame = 64 << 20, header = 4 << 20, segments = 65536, depth = 256 } = {}) {
    Object.assign(this, { frame, header, segments, depth });
  }
}

/** Reads one frame, and not a byte more. read(n) gives up to n bytes, none at the end of the stream. null means that the
 * stream ended before the frame's first byte. */
export async function readFrame(read, caps) {
  const length = await readExactly(read, 4, true);
  if (length === null) {
    return null;
  }
  const size = length.readUInt32BE();
  if (size > caps.frame) {
    throw new Violation("frame-cap", `a frame of ${size} bytes, the cap is ${caps.frame}`);
  }
  if (size < 4) {
    throw new Violation("frame-short", `a frame of ${size} bytes cannot hold a header`);
  }
  return readExactly(read, size);
}

/** Reads size bytes. What is kept grows as they arrive, and is never allocated by the peer's word. */
async function readExactly(read, size, between = false) {
  const pieces = [];
  let got = 0;
  while (got < size) {
    const more = await read(Math.min(size - got, Math.max(FIRST_READ, got)));
    if (more.length === 0) {
      if (between && got === 0) {
        return null;
      }
      throw new Violation("frame-cut", "the stream ended inside a frame");
    }
    pieces.push(more);
    got += more.length;
  }
  return pieces.length === 1 ? pieces[0] : Buffer.concat(pieces, size);
}

/** Takes a frame's body apart: the header, and the segments. */
function split(body, caps) {
  if (body.length < 4) {
    throw new Violation("frame-short", `a frame of ${body.length} bytes cannot hold a header`);
  }
  const size = body.readUInt32BE();
  if (size > caps.header) {
    throw new Violation("header-cap", `a header of ${size} bytes, the cap is ${caps.header}`);
  }
  if (size > body.length - 4) {
    throw new Violation("header-cut", `a header of ${size} bytes in a frame with ${body.length - 4} left`);
  }
  const segments = [];
  for (let at = 4 + size; at < body.length; ) {
    if (segments.length === caps.segments) {
      throw new Violation("segment-count", `more than ${caps.segments} segments`);
    }
    const left = body.length - at - 4;
    if (left < 0 || body.readUInt32BE(at) > left) {
      throw new Violation("segment-cut", `a segment, or its length, in a frame with ${left + 4} bytes left`);
    }
    const end = at + 4 + body.readUInt32BE(at);
    segments.push(body.subarray(at + 4, end));
    at = end;
  }
  return { header: body.subarray(4, 4 + size), segments };
}

/** Reads the body of one frame that the sender ("engine" or "worker") sent. */
export function decode(body, sender, caps) {
  const { header, segments } = split(body, caps);
  let text;
  try {
    text = UTF8.decode(header);
  } catch {
    throw new Violation("json-utf8", "the header is not UTF-8");
  }
  return new Decoder(text, segments, caps).message(sender);
}

/** Reads a header by the schema of its type. */
class Decoder extends Parser {
  constructor(text, segments, caps) {
    super(text, caps.depth);
    this.segments = segments;
    this.used = 0;
  }

  message(sender) {
    const m = {};
    this.object((key) => {
      if (m.type !== undefined) {
        this.field(m, SCHEMAS[m.type], key);
        return;
      }
      if (key !== "type") {
        throw new Violation("type", "the first field of a header is its type");
      }
      m.type = this.string();
      if (!(m.type in SCHEMAS)) {
        throw new Violation("type", "no message is of this type");
      }
    });
    this.end();
    if (m.type === undefined) {
      throw new Violation("json-missing", 'no field "type"');
    }
    demand(m, SCHEMAS[m.type], OPTIONAL[m.type] ?? []);
    if (m.type === "result") {
      checkForm(m);
    }
    if (SENDERS[m.type] !== sender) {
      throw new Violation("direction", `a "${m.type}" from the wrong side`);
    }
    if (this.used !== this.segments.length) {
      throw new Violation("segment-left", `${this.segments.length - this.used} segments are not referred to`);
    }
    return m;
  }

  field(into, schema, key) {
    if (!(key in schema)) {
      throw new Violation("json-field", `an unknown field before character ${this.at} of the header`);
    }
    into[key] = schema[key](this);
  }

  record(schema) {
    const found = {};
    this.object((key) => this.field(found, schema, key));
    demand(found, schema, []);
    return found;
  }

  listOf(read) {
    const found = [];
    this.array(() => found.push(read(this)));
    return found;
  }

  version() {
    const n = this.integer(0, INT64_MAX);
    if (n !== VERSION) {
      throw new Violation("version", `version ${n}, this side speaks ${VERSION}`);
    }
    return n;
  }

  name() {
    const s = this.string();
    if (s === "") {
      throw new Violation("name", "an empty name");
    }
    return s;
  }

  phase() {
    const s = this.string();
    if (s !== "route" && s !== "handle") {
      throw new Violation("phase", "no such phase");
    }
    return s;
  }

  id() {
    const s = this.string();
    if (!ID.test(s)) {
      throw new Violation("id", "no 32 lower-case hexadecimal digits");
    }
    return s;
  }

  settings() {
    if (this.peek() !== "{") {
      throw this.wrong("object");
    }
    return this.value();
  }

  tags() {
    const found = {};
    this.object((key) => put(found, key, this.string()));
    return found;
  }

  segment() {
    const n = this.integer(0, 2 ** 32 - 1);
    if (n !== this.used) {
      throw new Violation("segment-order", `segment ${n} where ${this.used} is next`);
    }
    if (n >= this.segments.length) {
      throw new Violation("segment-missing", `segment ${n} of ${this.segments.length}`);
    }
    return this.segments[this.used++];
  }
}

function demand(found, schema, optional) {
  for (const key in schema) {
    if (!(key in found) && !optional.includes(key)) {
      throw new Violation("json-missing", `no field "${key}"`);
    }
  }
}

/** A result is a router's choice, or a handler's work, or its refusal. */
function checkForm(m) {
  const answers = ["handlers", "sends", "drop"].filter((key) => key in m);
  for (const key of answers) {
    if ((key === "handlers") !== (m.phase === "route")) {
      throw new Violation("form", `${key} in an answer of phase "${m.phase}"`);
    }
  }
  if (answers.length !== 1) {
    throw new Violation("form", `a result has one of handlers, sends and drop, not ${answers.length}`);
  }
}

const text = (d) => d.string();
const name = (d) => d.name();
const segment = (d) => d.segment();
const version = (d) => d.version();

const FAULT = { __proto__: null, type: text, text, traceback: text };
const OFFER = { __proto__: null, phase: (d) => d.phase(), name };
const SEND = { __proto__: null, to: name, body: segment };
const BINDING = { id: (d) => d.id(), phase: (d) => d.phase(), name };
const offers = (d) => d.listOf(() => d.record(OFFER));
const error = (d) => d.record(FAULT);

const SCHEMAS = {
  __proto__: null,
  boot: {
    __proto__: null,
    version,
    file: text,
    offers,
    settings: (d) => d.settings(),
    frame_cap: (d) => d.integer(0, 2 ** 32 - 1),
  },
  ready: { __proto__: null, version, sdk: text, offers },
  bootfail: { __proto__: null, version, error },
  request: {
    __proto__: null,
    ...BINDING,
    message: (d) => d.integer(1, INT64_MAX),
    inbound: text,
    msgtype: text,
    control: text,
    received: text,
    attempt: (d) => d.integer(1, 2 ** 31 - 1),
    timeout_ms: (d) => d.integer(0, INT64_MAX),
    body: segment,
  },
  result: {
    __proto__: null,
    ...BINDING,
    handlers: (d) => d.listOf(name),
    sends: (d) => d.listOf(() => d.record(SEND)),
    drop: text,
    tags: (d) => d.tags(),
  },
  fail: { __proto__: null, ...BINDING, error },
};
const OPTIONAL = { result: ["handlers", "sends", "drop", "tags"] };
const SENDERS = { boot: "engine", request: "engine", ready: "worker", bootfail: "worker", result: "worker", fail: "worker" };

/** Refuses an answer that is not to this request. The id is judged first: a late answer has the right phase. */
export function checkBinding(request, answer) {
  for (const key of ["id", "phase", "name"]) {
    if (request[key] !== answer[key]) {
      throw new Violation(key, "the answer is to another request");
    }
  }
}

/** Makes the frame of a message, as pieces to be written one after the other. A message that the caps do not allow is
 * refused with the Violation that the reader would find. */
export function encode(m, caps) {
  const segments = [];
  const refer = (body) => segments.push(body) - 1;
  const fields = { ...m };
  if (m.sends !== undefined) {
    fields.sends = m.sends.map((s) => ({ to: s.to, body: refer(s.body) }));
  }
  if (m.body !== undefined) {
    fields.body = refer(m.body);
  }
  const header = Buffer.from(JSON.stringify(fields, (key, value) => (typeof value === "string" ? scrub(value) : value)));
  if (header.length > caps.header) {
    throw new Violation("header-cap", `a header of ${header.length} bytes, the cap is ${caps.header}`);
  }
  if (segments.length > caps.segments) {
    throw new Violation("segment-count", `${segments.length} segments, the cap is ${caps.segments}`);
  }
  const size = segments.reduce((sum, s) => sum + 4 + s.length, 4 + header.length);
  if (size > caps.frame) {
    throw new Violation("frame-cap", `a frame of ${size} bytes, the cap is ${caps.frame}`);
  }
  return [u32(size), u32(header.length), header, ...segments.flatMap((s) => [u32(s.length), s])];
}

function u32(n) {
  const b = Buffer.alloc(4);
  b.writeUInt32BE(n);
  return b;
}
