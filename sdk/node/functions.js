// What a user's file uses: what offers functions, what a function gets, and what it returns.

import { format } from "node:util";
import { HL7 } from "./hl7.js";
import { encodeText, scrub } from "./text.js";

export const ROUTE = "route";
export const HANDLE = "handle";
export const WORDS = { [ROUTE]: "router", [HANDLE]: "handler" };

/** The functions that a file offers, by phase and name. */
export class Registry {
  #functions = new Map();

  add(phase, f, name = f?.name) {
    const word = WORDS[phase];
    if (typeof f !== "function") {
      throw new TypeError(`${word}(f) takes a function, not ${format("%o", f)}`);
    }
    if (typeof name !== "string" || name === "") {
      throw new TypeError(`a ${word} needs a name: ${word}(function admit(msg, ctx) { ... }), or ${word}(f, { name: "admit" })`);
    }
    if (this.get(phase, name) !== undefined) {
      throw new Error(`two ${word} functions are named "${name}"`);
    }
    this.#functions.set(`${phase} ${name}`, { phase, name, f });
  }

  get(phase, name) {
    return this.#functions.get(`${phase} ${name}`)?.f;
  }

  /** What is offered, in the order in which it was. */
  offers() {
    return Array.from(this.#functions.values(), ({ phase, name }) => ({ phase, name }));
  }
}

export const OFFERED = new Registry();

export function router(f, { name } = {}) {
  OFFERED.add(ROUTE, f, name);
  return f;
}

export function handler(f, { name } = {}) {
  OFFERED.add(HANDLE, f, name);
  return f;
}

export class Send {
  #to;
  #body;

  constructor(to, body) {
    if (typeof to !== "string" || to === "") {
      throw new TypeError(`new Send(to, body): to is the name of an outbound, not ${format("%o", to)}`);
    }
    this.#to = to;
    this.#body = bytes(body);
  }

  get to() {
    return this.#to;
  }

  get body() {
    return this.#body;
  }
}

/** The bytes of a body as it is at this moment. */
function bytes(body) {
  if (typeof body === "string") {
    return encodeText(body);
  }
  if (ArrayBuffer.isView(body)) {
    return Buffer.from(Buffer.from(body.buffer, body.byteOffset, body.byteLength));
  }
  if (typeof body?.toBuffer === "function") {
    return Buffer.from(body.toBuffer());
  }
  throw new TypeError("new Send(to, body): body is a string, a Buffer or another view of bytes, or an HL7 message");
}

export class Drop {
  #reason;

  constructor(reason) {
    if (typeof reason !== "string") {
      throw new TypeError(`new Drop(reason): reason is a string, not ${format("%o", reason)}`);
    }
    this.#reason = reason;
  }

  get reason() {
    return this.#reason;
  }
}

export class Message {
  #received;
  #hl7;
  #tags;

  constructor(request, tags) {
    this.id = request.message;
    this.inbound = request.inbound;
    this.type = request.msgtype;
    this.controlId = request.control;
    this.attempt = request.attempt;
    this.body = request.body;
    this.#received = request.received;
    this.#tags = tags;
  }

  get received() {
    return new Date(this.#received);
  }

  get hl7() {
    return (this.#hl7 ??= new HL7(this.body));
  }

  tag(tags) {
    for (const [name, value] of Object.entries(tags)) {
      if (typeof value !== "string" && typeof value !== "bigint" && !Number.isSafeInteger(value)) {
        throw new TypeError(`the tag ${name} is a string or a whole number, not ${format("%o", value)}`);
      }
      this.#tags.set(scrub(name), scrub(String(value)));
    }
  }
}

export class Context {
  constructor(settings, deadline) {
    this.settings = settings;
    this.deadline = deadline;
    this.log = LOG;
  }

  remaining() {
    return Math.max(0, this.deadline - performance.now());
  }
}

const level = (word) => (...values) => process.stderr.write(`${word} ${format(...values)}\n`);
const LOG = Object.freeze({ info: level("INFO"), warning: level("WARNING"), error: level("ERROR") });
