// The worker's side of the wire: boot, load, ready, then one answer for each request until the engine closes.

import { Socket } from "node:net";
import { version } from "./version.js";
import "./index.js"; // before the user's copy of it, if he has one
import * as alone from "./alone.js";
import { answer, RESULT } from "./calling.js";
import * as faults from "./faults.js";
import { Context, OFFERED } from "./functions.js";
import { load, missing, OFFER } from "./loading.js";
import { Violation } from "./violation.js";
import { Caps, decode, encode, readFrame, VERSION } from "./wire.js";

const EXIT_VIOLATION = 70; // the engine broke the protocol
const EXIT_NO_ENGINE = 78; // started by something else than an engine
const EXIT_LOST = 1; // the engine is gone, or the code cannot be loaded

const WIRE = /^(0|[1-9][0-9]{0,18}),(0|[1-9][0-9]{0,18})$/;
const NOT_STARTED = `\
coppice-worker: this program is started by a Coppice engine, which sets COPPICE_WIRE.
Name your file in coppice.toml (run = "adt.mjs:admit") and start it with: coppice serve
To call one function of a file by hand:  coppice-worker run adt.mjs:admit MESSAGE`;

/** Runs a worker, or with the argument "run" one function alone. Returns the exit status. */
export async function main(args) {
  const flush = printing();
  if (args[0] === "run") {
    const status = await alone.main(args.slice(1));
    await flush();
    return status;
  }
  let wire;
  try {
    wire = Wire.fromEnvironment();
  } catch (e) {
    console.error(e.message);
    return EXIT_NO_ENGINE;
  }
  // A function that waits for what never comes must meet its deadline: without anything to wait for, Node would exit.
  setInterval(() => {}, 2 ** 30);
  try {
    return await serve(wire.read, wire.write, flush);
  } catch (e) {
    if (e instanceof Violation) {
      console.error(`coppice-worker: by the engine: ${e.message}`);
      return EXIT_VIOLATION;
    }
    console.error(`coppice-worker: the wire to the engine: ${e.message}`);
    return EXIT_LOST;
  }
}

/**
 * The two descriptors of the protocol. No program that the user's code starts holds them: Node marks every descriptor that
 * it was born with as close-on-exec (on Windows, as not inheritable) before it runs any script, and gives a child what
 * "stdio" names and no other. Code that names them there hands them over; nothing hinders it.
 *
 * They are read and written by the event loop: a read that blocks (fs.readSync) would stop the timers and the connections
 * that the user's code keeps between messages. Measured over pipes, for a round of 300 bytes, with Node 18, 20 and 22: 41, 19
 * and 31 us, against 26, 21 and 21 us where it blocks. fs.read, which blocks one of four threads of a pool, took 50 to 73 us,
 * and process.exit waits for that thread.
 */
class Wire {
  #chunks;
  #out;
  #rest = Buffer.alloc(0);

  constructor(readFd, writeFd) {
    this.#chunks = new Socket({ fd: readFd, readable: true, writable: false })[Symbol.asyncIterator]();
    this.#out = new Socket({ fd: writeFd, readable: false, writable: true });
    this.#out.on("error", () => {}); // the callback of write gets it
  }

  /** Takes COPPICE_WIRE out of the environment. */
  static fromEnvironment() {
    const value = process.env.COPPICE_WIRE;
    delete process.env.COPPICE_WIRE;
    if (value === undefined) {
      throw new Error(NOT_STARTED);
    }
    const found = WIRE.exec(value);
    if (found === null) {
      throw new Error("coppice-worker: COPPICE_WIRE is not two numbers with a comma between");
    }
    // On Windows the numbers are handles, which Node cannot open; the C runtime has them as 3 and 4.
    const fds = process.platform === "win32" ? [3, 4] : found.slice(1).map(Number);
    try {
      return new Wire(...fds);
    } catch (e) {
      throw new Error(`coppice-worker: COPPICE_WIRE names what is not open, or no pipe: ${e.message}`);
    }
  }

  read = async (size) => {
    if (this.#rest.length === 0) {
      const { value, done } = await this.#chunks.next();
      if (done) {
        return this.#rest;
      }
      this.#rest = value;
    }
    const got = this.#rest.subarray(0, size);
    this.#rest = this.#rest.subarray(size);
    return got;
  };

  /** Writes a frame, in as few system calls as it takes. */
  write = (pieces) =>
    new Promise((resolve, reject) => {
      this.#out.cork();
      pieces.slice(0, -1).forEach((piece) => this.#out.write(piece));
      this.#out.write(pieces.at(-1), (e) => (e ? reject(e) : resolve()));
      this.#out.uncork();
    });
}

/** Returns what waits until all that was printed has left: it belongs to its dispatch, and goes before the answer. The streams
 * are taken before the user's code can replace them, or their methods. */
function printing() {
  const streams = [process.stdout, process.stderr].map((stream) => ({ stream, write: stream.write }));
  for (const { stream } of streams) {
    stream.on("error", () => {}); // what is printed never throws
  }
  return async () => {
    for (const { stream, write } of streams) {
      if (stream.writable && stream.writableLength > 0) {
        await new Promise((done) => write.call(stream, "", done));
      }
    }
  };
}

/** Speaks the protocol until the engine closes its end. Returns the exit status. */
export async function serve(read, write, flush, loading = loaded) {
  const caps = new Caps();
  const boot = await next(read, caps);
  if (boot === null) {
    return 0;
  }
  if (boot.type !== "boot") {
    throw new Violation("order", `a "${boot.type}" before boot`);
  }
  caps.frame = boot.frame_cap || caps.frame;
  const fault = await loading(boot);
  await flush();
  if (fault !== null) {
    await write(encode({ type: "bootfail", version: VERSION, error: fault }, caps));
    return EXIT_LOST;
  }
  const sdk = `coppice-worker/${version} node/${process.versions.node}`;
  await write(encode({ type: "ready", version: VERSION, sdk, offers: OFFERED.offers() }, caps));
  for (;;) {
    const request = await next(read, caps);
    if (request === null) {
      return 0;
    }
    if (request.type !== "request") {
      throw new Violation("order", `a second "${request.type}"`);
    }
    const answered = await dispatch(request, boot.settings);
    await flush();
    await write(encodeAnswer(request, answered, caps));
  }
}

async function next(read, caps) {
  const body = await readFrame(read, caps);
  return body === null ? null : decode(body, "engine", caps);
}

async function loaded({ file, offers }) {
  if (file === "") {
    return faults.plain(OFFER, "boot names no file, and this worker has no code of its own");
  }
  return (await load(file)) ?? missing(file, offers);
}

function dispatch(request, settings) {
  const deadline = performance.now() + Number(request.timeout_ms);
  const f = OFFERED.get(request.phase, request.name);
  if (f === undefined) {
    return { type: "fail", error: faults.plain(OFFER, `no function "${request.name}" for phase "${request.phase}"`) };
  }
  return answer(request, f, new Context(settings, deadline));
}

/** The frame of an answer; one that does not fit the caps is the message's fault. */
function encodeAnswer({ id, phase, name }, { type, ...fields }, caps) {
  try {
    return encode({ type, id, phase, name, ...fields }, caps);
  } catch (e) {
    if (!(e instanceof Violation)) {
      throw e;
    }
    const error = faults.plain(RESULT, `the result of "${name}" is too large: ${e.detail}`);
    return encode({ type: "fail", id, phase, name, error }, caps);
  }
}
