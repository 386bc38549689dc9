// Reads protocol/vectors, from the checkout that this folder is part of.

import { readFileSync } from "node:fs";

const FOLDER = new URL("../../../protocol/vectors/", import.meta.url);

/** The vectors of a file. A whole number that a number does not hold becomes a bigint, which JSON.parse cannot do alone. */
export function load(name) {
  const text = readFileSync(new URL(name, FOLDER), "utf8").replace(/(?<=[:[,] *)-?\d{16,}(?= *[,\]}])/g, '{"big": "$&"}');
  return JSON.parse(text, (key, value) => (typeof value?.big === "string" ? BigInt(value.big) : value));
}

/** The bytes of a vector's hex: one string, or a list of strings and repetitions. */
export function stream(pieces) {
  const bytes = (p) => (typeof p === "string" ? Buffer.from(p, "hex") : Buffer.alloc(p.repeat.length / 2 * p.times, p.repeat, "hex"));
  return Buffer.concat([pieces].flat().map(bytes));
}

/** A stream to be read, which tells what is left of it. */
export function reader(data) {
  const read = (n) => {
    const got = read.rest.subarray(0, n);
    read.rest = read.rest.subarray(n);
    return got;
  };
  read.rest = data;
  return read;
}

/** The message that a vector describes: its bodies are hex. */
export function message(canonical) {
  const m = { ...canonical };
  if ("body" in m) {
    m.body = stream(m.body);
  }
  if ("sends" in m) {
    m.sends = m.sends.map((s) => ({ to: s.to, body: stream(s.body) }));
  }
  return m;
}
