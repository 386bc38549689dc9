// HL7 v2 messages, lossless: bytes that are not set stay as they were. index.d.ts says how to use one. The SDKs of Python and
// Go have the same; protocol/hl7/cases.json holds what all three do.
//
// A message is kept as raw strings, one character for each byte, so that to split and to join it is what strings do; values
// are decoded on their way out, and encoded on their way in.

import { decodeText, encodeText } from "./text.js";

const LEAD = /^(?:\xef\xbb\xbf)?[ \t\r\n]*/;
const NAME = /^[A-Z0-9]{3}$/; // the segments that a path can name
const NO_SEPARATOR = /^[\x00-\x20\x7f0-9A-Za-z]/; // "MSHA" is a word and no header
const HEADERS = ["MSH", "FHS", "BHS"]; // their first field is the separator
const COUNT = "([1-9][0-9]{0,5})";
const PATH = new RegExp(`^([A-Za-z0-9]{3})(?:\\[${COUNT}\\])?-${COUNT}(?:\\[${COUNT}\\])?(?:\\.${COUNT}(?:\\.${COUNT})?)?$`);

// What a character set lacks; with u, they match no half of a whole pair. U+DC80 to U+DCFF stand for bytes.
const NOT_LATIN1 = /[^\x00-\xff\udc80-\udcff]/u;
const NOT_UTF8 = /[\ud800-\udc7f\udd00-\udfff]/u;

/** The bytes do not start with a header segment. */
export class NotHL7 extends Error {}
NotHL7.prototype.name = "NotHL7";

export class HL7 {
  #lead;
  #parts; // segments, and between them what ends each
  #index; // where the segments are that a path can name, by name: no name is ever changed
  #latin1 = false;

  constructor(body) {
    const raw = Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString("latin1");
    this.#lead = LEAD.exec(raw)[0];
    this.#parts = raw.slice(this.#lead.length).split(/(\r\n|\r|\n)/);
    const head = this.#parts[0];
    if (!HEADERS.includes(head.slice(0, 3)) || head.length < 4 || NO_SEPARATOR.test(head[3])) {
      throw new NotHL7("the body is not HL7 v2: it does not start with MSH, BHS or FHS and a field separator");
    }
    this.field = head[3];
    const given = head.slice(4).split(this.field, 1)[0];
    [this.component, this.repetition, this.escaping, this.sub] = [0, 1, 2, 3].map((i) =>
      given.slice(0, i).includes(given.charAt(i)) ? "" : given.charAt(i),
    ); // "^~\\\\&" has been seen: no character means two things
    this.#index = this.#indexed();
    this.#latin1 = this.get("MSH-18[1]") === "8859/1";
  }

  #indexed() {
    const index = new Map();
    for (let at = 0; at < this.#parts.length; at += 2) {
      const name = this.#parts[at].split(this.field, 1)[0];
      if (NAME.test(name)) {
        index.set(name, index.get(name) ?? []).get(name).push(at);
      }
    }
    return index;
  }

  toBuffer() {
    return Buffer.from(this.#lead + this.#parts.join(""), "latin1");
  }

  has(segment) {
    return this.count(segment) > 0;
  }

  count(segment) {
    return this.#index.get(segment.toUpperCase())?.length ?? 0;
  }

  get(path, absent = "") {
    const p = parse(path);
    const at = this.#find(p);
    return (at === undefined ? "" : this.#decode(this.#read(this.#parts[at], p))) || absent;
  }

  set(path, value) {
    const p = parse(path);
    if (p.header && p.field <= 2) {
      throw new RangeError(`${path}: the separators of a message are not changed`);
    }
    const raw = this.#encode(value, path);
    this.#refuseSeparators(p, path, raw);
    const at = this.#find(p);
    if (raw === "" && (at === undefined || this.#read(this.#parts[at], p) === "")) {
      return; // what is not there is not made to be empty
    }
    if (at === undefined) {
      throw new RangeError(`${path}: the message has no such segment`);
    }
    this.#parts[at] = this.#write(this.#parts[at], this.#levels(p), raw, path);
  }

  escape(text) {
    const e = this.#decode(this.escaping);
    const names = new Map(this.#named().map(([c, name]) => [this.#decode(c), name]));
    return e === "" ? text : Array.from(text, (c) => (names.has(c) ? e + names.get(c) + e : c)).join("");
  }

  unescape(value) {
    const e = this.#decode(this.escaping);
    if (e === "") {
      return value;
    }
    const chars = new Map(this.#named().map(([c, name]) => [name, this.#decode(c)]));
    const quoted = e.replace(/[\\^$.*+?()[\]{}|/]/, "\\$&");
    // With u, an escape character that is no UTF-8 is not found in the half of a whole pair.
    return value.replace(new RegExp(`${quoted}([A-Z])${quoted}`, "gu"), (whole, name) => chars.get(name) ?? whole);
  }

  /** The separators that the message declares, with the letters that stand for them in an escape sequence. */
  #named() {
    return [[this.field, "F"], [this.component, "S"], [this.repetition, "R"], [this.sub, "T"], [this.escaping, "E"]].filter(
      ([c]) => c !== "",
    );
  }

  #decode(raw) {
    return this.#latin1 ? raw : decodeText(raw);
  }

  #encode(value, path) {
    if (typeof value !== "string") {
      throw new TypeError(`${path}: a value is a string, not a ${typeof value}`);
    }
    const [lacks, charset] = this.#latin1 ? [NOT_LATIN1, "Latin-1"] : [NOT_UTF8, "UTF-8"];
    const lacking = lacks.exec(value);
    if (lacking !== null) {
      throw new RangeError(`${path}: ${JSON.stringify(lacking[0])} is not in ${charset}, the message's character set`);
    }
    // As Latin-1, the halves U+DC80 to U+DCFF are cut to the bytes that they stand for.
    return (this.#latin1 ? Buffer.from(value, "latin1") : encodeText(value)).toString("latin1");
  }

  #find(p) {
    return this.#index.get(p.segment)?.[p.occurrence - 1];
  }

  /** The separators to split by on the way to a path, each with the index to take. */
  #levels(p) {
    const levels = [[this.field, p.header ? p.field - 1 : p.field]];
    if (p.header && p.field <= 2) {
      return levels; // the separators themselves
    }
    if (p.repetition || p.component) {
      levels.push([this.repetition, (p.repetition ?? 1) - 1]);
    }
    if (p.component) {
      levels.push([this.component, p.component - 1]);
    }
    if (p.sub) {
      levels.push([this.sub, p.sub - 1]);
    }
    return levels;
  }

  #read(raw, p) {
    if (p.header && p.field === 1) {
      return this.field;
    }
    return this.#levels(p).reduce((rest, [separator, index]) => splitBy(rest, separator, index)[index] ?? "", raw);
  }

  #write(raw, [level, ...deeper], value, path) {
    if (level === undefined) {
      return value;
    }
    const [separator, index] = level;
    const parts = splitBy(raw, separator, index);
    if (index >= parts.length && separator === "") {
      throw new RangeError(`${path}: the message declares no separator for it`);
    }
    while (parts.length <= index) {
      parts.push("");
    }
    parts[index] = this.#write(parts[index], deeper, value, path);
    return parts.join(separator);
  }

  /** A value must not hold what would end it: the separators of its own level and of those above. */
  #refuseSeparators(p, path, raw) {
    for (const end of ["\r", "\n", ...this.#levels(p).map(([separator]) => separator)]) {
      if (end !== "" && raw.includes(end)) {
        throw new RangeError(`${path}: the value holds ${JSON.stringify(end)}, which ends it; use escape()`);
      }
    }
  }
}

/** The pieces up to the one at index; what follows stays in one piece. */
function splitBy(raw, separator, index) {
  if (separator === "") {
    return [raw];
  }
  const parts = raw.split(separator, index + 1);
  const taken = parts.join(separator).length;
  return taken < raw.length ? [...parts, raw.slice(taken + 1)] : parts;
}

function parse(path) {
  const found = typeof path === "string" ? PATH.exec(path) : null;
  if (found === null) {
    throw new TypeError(`${String(path)} is no path: write PID-3, PID-3.1, PID-3[2].4.1 or OBX[3]-5`);
  }
  const [occurrence, field, repetition, component, sub] = found.slice(2).map((n) => n && Number(n));
  const segment = found[1].toUpperCase();
  return { segment, occurrence: occurrence ?? 1, field, repetition, component, sub, header: HEADERS.includes(segment) };
}
