// Plays the engine to a real worker process. Every wait has a deadline.

import { spawn, spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Caps, decode, encode, readFrame } from "../wire.js";

export const ID = "5f3a9c0e1b2d4c6f8091a2b3c4d5e6f7";
const SDK = fileURLToPath(new URL("..", import.meta.url));
const PATIENCE = 30_000;

export function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(reject, PATIENCE, new Error(`${what}: waited in vain`))));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** A folder with these files, and with the SDK among its modules as an engine puts it there. */
export function folder(files, installed = true) {
  const dir = mkdtempSync(join(tmpdir(), "coppice-node-"));
  for (const [file, source] of Object.entries(files)) {
    writeFileSync(join(dir, file), source);
  }
  if (installed) {
    cpSync(SDK, join(dir, "node_modules", "coppice-worker"), { recursive: true, filter: (path) => !/(\.go|tests)$/.test(path) });
  }
  return dir;
}

/** Starts a program of the SDK to its end. */
export function run(dir, args, env = {}) {
  return spawnSync(process.execPath, [join(SDK, "main.js"), ...args], { cwd: dir, env, encoding: "utf8", input: "", timeout: PATIENCE });
}

export class Engine {
  constructor(source, { file = "adt.mjs", neighbours = {}, stdout } = {}) {
    this.dir = folder({ [file]: source, ...neighbours });
    this.file = join(this.dir, file);
    const output = openSync(join(this.dir, "output"), "a");
    this.process = spawn(process.execPath, [join(this.dir, "node_modules/coppice-worker/main.js")], {
      cwd: this.dir, env: { COPPICE_WIRE: "3,4", PATH: process.env.PATH }, stdio: ["ignore", stdout ?? output, output, "pipe", "pipe"],
    });
    this.ended = new Promise((resolve) => this.process.once("exit", (status, signal) => resolve(signal ?? status)));
    this.to = this.process.stdio[3];
    this.to.on("error", () => {}); // a worker that has ended reads nothing
    this.chunks = this.process.stdio[4][Symbol.asyncIterator]();
    this.rest = Buffer.alloc(0);
  }

  async boot(offers = [], settings = {}, frame_cap = 0) {
    const asked = offers.map(([phase, name]) => ({ phase, name }));
    this.send({ type: "boot", version: 1, file: this.file, offers: asked, settings, frame_cap });
    this.booted = await this.receive();
    return this.booted;
  }

  send(message) {
    this.to.write(Buffer.concat(encode(message, new Caps())));
  }

  read = async (n) => {
    if (this.rest.length === 0) {
      this.rest = (await within(this.chunks.next(), "an answer")).value ?? this.rest;
    }
    const got = this.rest.subarray(0, n);
    this.rest = this.rest.subarray(n);
    return got;
  };

  /** The worker's next message; null when it closed its end. */
  async receive() {
    const frame = await readFrame(this.read, new Caps());
    return frame === null ? null : decode(frame, "worker", new Caps());
  }

  ask(name, body = "MSH|^~\\&|", phase = "handle") {
    this.send({
      type: "request", id: ID, phase, name, message: 7, inbound: "adt", msgtype: "ADT^A01", control: "C1",
      received: "2026-01-02T03:04:05.678901234Z", attempt: 2, timeout_ms: 60000, body: Buffer.from(body),
    });
    return this.receive();
  }

  /** The body that a handler sends. */
  async body(name) {
    return String((await this.ask(name)).sends[0].body);
  }

  printed() {
    return readFileSync(join(this.dir, "output"), "utf8");
  }

  /** Waits until the worker has printed something. No event tells: it polls. */
  async prints(text) {
    for (const end = Date.now() + PATIENCE; !this.printed().includes(text); await new Promise((done) => setTimeout(done, 5))) {
      if (Date.now() > end) {
        throw new Error(`the worker did not print ${text}, but ${this.printed()}`);
      }
    }
  }

  /** Ends the worker and returns its exit status. */
  async close() {
    this.to.end();
    try {
      return await within(this.ended, "the end");
    } finally {
      this.process.kill("SIGKILL");
      rmSync(this.dir, { recursive: true, force: true });
    }
  }
}
