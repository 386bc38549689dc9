// Reads one header: JSON (RFC 8259), strict, from its start to its end, so that the first fault names the violation.
//
// JSON.parse is not used because it takes the last of two duplicate keys, rounds whole numbers beyond 2^53, and lets halves
// of surrogate pairs pass: each lets two readers of one frame see two messages.

import { Violation } from "./violation.js";

const SPACE = /[ \t\n\r]*/y;
const PLAIN = /[^"\\\x00-\x1f]*/y;
const DIGITS = /[0-9]+/y;
const HEX4 = /[0-9a-fA-F]{4}/y;
const ESCAPES = { __proto__: null, '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const STARTS = '"{[-tfn0123456789';

export const INT64_MIN = -(1n << 63n);
export const INT64_MAX = (1n << 63n) - 1n;

/** A position in the text of one header. */
export class Parser {
  constructor(text, maxDepth) {
    this.text = text;
    this.at = 0;
    this.depth = 0;
    this.maxDepth = maxDepth;
  }

  /** What the pattern, which is sticky, finds here, taken; null if it finds nothing. */
  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found === null) {
      return null;
    }
    this.at += found[0].length;
    return found[0];
  }

  /** The next character that is not space, without taking it; empty at the end. */
  peek() {
    this.match(SPACE);
    return this.text.charAt(this.at);
  }

  take(c) {
    if (this.peek() !== c) {
      return false;
    }
    this.at++;
    return true;
  }

  syntax(what) {
    return new Violation("json-syntax", `${what} at character ${this.at} of the header`);
  }

  /** The fault of a value that is not of the wanted type: of syntax if it is no value at all. */
  wrong(want) {
    const c = this.peek();
    if (c !== "" && STARTS.includes(c)) {
      return new Violation("json-type", `no ${want} at character ${this.at} of the header`);
    }
    return this.syntax("no value");
  }

  enter() {
    if (++this.depth > this.maxDepth) {
      throw new Violation("json-depth", `nested deeper than ${this.maxDepth}`);
    }
  }

  /** Reads an object and calls field for each key, to read its value. */
  object(field) {
    if (!this.take("{")) {
      throw this.wrong("object");
    }
    this.enter();
    const seen = new Set();
    while (!this.take("}")) {
      if (seen.size > 0 && !this.take(",")) {
        throw this.syntax("no comma");
      }
      field(this.key(seen));
    }
    this.depth--;
  }

  key(seen) {
    if (this.peek() !== '"') {
      throw this.syntax("no key");
    }
    const key = this.string();
    if (seen.has(key)) {
      throw new Violation("json-duplicate", `a key occurs twice before character ${this.at} of the header`);
    }
    seen.add(key);
    if (!this.take(":")) {
      throw this.syntax("no colon");
    }
    return key;
  }

  /** Reads an array and calls item where each item starts. */
  array(item) {
    if (!this.take("[")) {
      throw this.wrong("array");
    }
    this.enter();
    for (let first = true; !this.take("]"); first = false) {
      if (!first && !this.take(",")) {
        throw this.syntax("no comma");
      }
      item();
    }
    this.depth--;
  }

  string() {
    if (!this.take('"')) {
      throw this.wrong("string");
    }
    let found = this.match(PLAIN);
    for (;;) {
      const c = this.text.charAt(this.at);
      if (c === '"') {
        this.at++;
        return found;
      }
      if (c !== "\\") {
        throw this.syntax(c ? "a control character in a string" : "a string without end");
      }
      this.at++;
      found += this.escape() + this.match(PLAIN);
    }
  }

  escape() {
    const c = this.text.charAt(this.at++);
    if (c !== "u") {
      const meaning = ESCAPES[c];
      if (meaning === undefined) {
        throw this.syntax(c ? "an unknown escape" : "a string without end");
      }
      return meaning;
    }
    const high = this.hex4();
    if (high < 0xd800 || high > 0xdfff) {
      return String.fromCharCode(high);
    }
    if (high <= 0xdbff && this.text.startsWith("\\u", this.at)) {
      this.at += 2;
      const low = this.hex4();
      if (low >= 0xdc00 && low <= 0xdfff) {
        return String.fromCharCode(high, low);
      }
    }
    throw new Violation("json-utf8", `half of a surrogate pair before character ${this.at} of the header`);
  }

  hex4() {
    const found = this.match(HEX4);
    if (found === null) {
      throw this.syntax("no four hexadecimal digits");
    }
    return parseInt(found, 16);
  }

  step(among) {
    const c = this.text.charAt(this.at);
    if (c === "" || !among.includes(c)) {
      return false;
    }
    this.at++;
    return true;
  }

  digits() {
    if (this.match(DIGITS) === null) {
      throw this.syntax("no digit");
    }
  }

  /** Takes the text of a number and says whether it is written as a whole one. */
  number() {
    const c = this.peek();
    if (c === "" || !"-0123456789".includes(c)) {
      throw this.wrong("number");
    }
    const start = this.at;
    let whole = true;
    this.step("-");
    if (!this.step("0")) {
      this.digits();
    }
    if (this.step(".")) {
      whole = false;
      this.digits();
    }
    if (this.step("eE")) {
      whole = false;
      this.step("+-");
      this.digits();
    }
    return { text: this.text.slice(start, this.at), whole };
  }

  /** Reads a whole number from low to high: a number where that holds it exactly, else a bigint. */
  integer(low, high) {
    const { text, whole } = this.number();
    const n = whole ? exact(text) : null;
    if (n === null || n < low || n > high) {
      throw new Violation("json-number", `no whole number from ${low} to ${high} before character ${this.at} of the header`);
    }
    return n;
  }

  /** Reads any value but null. It calls itself as deep as maxDepth at most. */
  value() {
    switch (this.peek()) {
      case "{": {
        const found = {};
        this.object((key) => put(found, key, this.value()));
        return found;
      }
      case "[": {
        const found = [];
        this.array(() => found.push(this.value()));
        return found;
      }
      case '"':
        return this.string();
      case "t":
      case "f":
      case "n":
        return this.word();
    }
    const { text, whole } = this.number();
    const n = whole ? exact(text) : Number(text);
    if (n === null || !(typeof n === "bigint" || Number.isFinite(n))) {
      throw new Violation("json-number", `beyond ${whole ? "64 bits" : "a double"} before character ${this.at} of the header`);
    }
    return n;
  }

  word() {
    for (const word of ["true", "false", "null"]) {
      if (this.text.startsWith(word, this.at)) {
        if (word === "null") {
          throw new Violation("json-type", `null at character ${this.at} of the header`);
        }
        this.at += word.length;
        return word === "true";
      }
    }
    throw this.syntax("no value");
  }

  /** Refuses anything behind the header's object but space. */
  end() {
    if (this.peek() !== "") {
      throw this.syntax("more than one value");
    }
  }
}

/** Sets a field of an object that has the peer's names: an assignment to "__proto__" would set no field. */
export function put(into, key, value) {
  Object.defineProperty(into, key, { value, writable: true, enumerable: true, configurable: true });
}

/** A whole number of 64 bits, or null. Its length is looked at first: BigInt takes long for long ones. */
function exact(text) {
  const n = text.length > 20 ? null : BigInt(text);
  if (n === null || n < INT64_MIN || n > INT64_MAX) {
    return null;
  }
  return Number.isSafeInteger(Number(n)) ? Number(n) : n;
}
