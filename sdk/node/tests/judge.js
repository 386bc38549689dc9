// Tells of many streams how this SDK judges each: the same program as ../../python/tests/judge.py, which says what it reads.

import { readFileSync } from "node:fs";

import { Violation } from "../violation.js";
import { Caps, decode, readFrame } from "../wire.js";
import { reader } from "./vectors.js";

async function judge(stream, sender, caps) {
  try {
    const body = await readFrame(reader(stream), caps);
    if (body === null) {
      return "end";
    }
    decode(body, sender, caps);
  } catch (e) {
    if (e instanceof Violation) {
      return e.violation;
    }
    throw e;
  }
  return "ok";
}

const input = readFileSync(0);
const verdicts = [];
for (let at = 0; at < input.length; ) {
  const [frame, header, segments, depth, size] = [1, 5, 9, 13, 17].map((n) => input.readUInt32BE(at + n));
  const sender = ["engine", "worker"][input[at]];
  at += 21;
  verdicts.push(await judge(input.subarray(at, at + size), sender, new Caps({ frame, header, segments, depth })));
  at += size;
}
process.stdout.write(verdicts.map((v) => v + "\n").join(""));
