// HL7 v2 messages, lossless: bytes that are not set stay as they were. index.d.ts says how to use one.
//
// A message is kept as raw strings, one character for each byte, so that to split and to join it is what strings do; values
// are decoded on their way out, and encoded on their way in.

import { decodeText, encodeText } from "./text.js";

const BOM = "\xef\xbb\xbf";
const HEADERS = ["MSH", "FHS", "BHS"];
const COUNT = "([1-9][0-9]{0,5})";
const PATH = new RegExp(`^([A-Za-z0-9]{3})(?:\\[${COUNT}\\])?-${COUNT}(?:\\[${COUNT}\\])?(?:\\.${COUNT}(?:\\.${COUNT})?)?$`);

/** The bytes do not start with a header segment. */
export class NotHL7 extends Error {}
NotHL7.prototype.name = "NotHL7";

export class HL7 {
  #bom;
  #parts; // segments, and between them what ends each
  #latin1 = false;

  constructor(body) {
    const raw = Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString("latin1");
    this.#bom = raw.startsWith(BOM) ? BOM : "";
    this.#parts = raw.slice(this.#bom.length).split(/(\r\n|\r|\n)/);
    const head = this.#parts[0];
    if (!isHeader(head) || head.length < 4) {
      throw new NotHL7("the body is not HL7 v2: it does not start with MSH, BHS or FHS and a field separator");
    }
    this.field = head[3];
    const given = head.slice(4).split(this.field)[0];
    [this.component, this.repetition, this.escaping] = [given.charAt(0), given.charAt(1), given.charAt(2)];
    const sub = given.charAt(3);
    this.sub = given.slice(0, 3).includes(sub) ? "" : sub; // "^~\\\\&" has been seen
    this.#latin1 = this.get("MSH-18").startsWith("8859/1");
  }

  toBuffer() {
    return Buffer.from(this.#bom + this.#parts.join(""), "latin1");
  }

  has(segment) {
    return this.count(segment) > 0;
  }

  count(segment) {
    return this.#parts.filter((_, i) => i % 2 === 0 && this.#name(i) === segment).length;
  }

  get(path, absent = "") {
    const p = parse(path);
    const at = this.#find(p);
    return (at < 0 ? "" : this.#decode(this.#read(this.#parts[at], p))) || absent;
  }

  set(path, value) {
    const p = parse(path);
    const at = this.#find(p);
    if (at < 0) {
      throw new RangeError(`${path}: the message has no such segment`);
    }
    if (isHeader(this.#parts[at]) && p.field <= 2) {
      throw new RangeError(`${path}: the separators of a message are not changed`);
    }
    const raw = this.#encode(value);
    this.#refuseSeparators(p, path, raw);
    this.#parts[at] = this.#write(this.#parts[at], this.#levels(p), raw);
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
    return value.replace(new RegExp(`${quoted}([A-Z])${quoted}`, "g"), (whole, name) => chars.get(name) ?? whole);
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

  #encode(value) {
    if (typeof value !== "string") {
      throw new TypeError(`a value is a string, not a ${typeof value}`);
    }
    if (!this.#latin1) {
      return encodeText(value).toString("latin1");
    }
    if (/[^\x00-\xff]/.test(value)) {
      throw new RangeError("the message is in Latin-1 (MSH-18), which has no such character");
    }
    return value;
  }

  #name(at) {
    return this.#parts[at].split(this.field, 1)[0];
  }

  #find(p) {
    let left = p.occurrence;
    return this.#parts.findIndex((_, i) => i % 2 === 0 && this.#name(i) === p.segment && --left === 0);
  }

  /** The separators to split by on the way to a path, each with the index to take. */
  #levels(p) {
    const header = HEADERS.includes(p.segment);
    const levels = [[this.field, header ? p.field - 1 : p.field]];
    if (header && p.field <= 2) {
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
    if (isHeader(raw) && p.field === 1) {
      return this.field;
    }
    return this.#levels(p).reduce((rest, [separator, index]) => splitBy(rest, separator)[index] ?? "", raw);
  }

  #write(raw, [level, ...deeper], value) {
    if (level === undefined) {
      return value;
    }
    const [separator, index] = level;
    const parts = splitBy(raw, separator);
    if (index >= parts.length && separator === "") {
      throw new RangeError("the message declares no separator for this");
    }
    while (parts.length <= index) {
      parts.push("");
    }
    parts[index] = this.#write(parts[index], deeper, value);
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

function isHeader(raw) {
  return HEADERS.includes(raw.slice(0, 3));
}

function splitBy(raw, separator) {
  return separator === "" ? [raw] : raw.split(separator);
}

function parse(path) {
  const found = typeof path === "string" ? PATH.exec(path) : null;
  if (found === null) {
    throw new TypeError(`${String(path)} is no path: write PID-3, PID-3.1, PID-3[2].4.1 or OBX[3]-5`);
  }
  const [occurrence, field, repetition, component, sub] = found.slice(2).map((n) => n && Number(n));
  return { segment: found[1].toUpperCase(), occurrence: occurrence ?? 1, field, repetition, component, sub };
}
