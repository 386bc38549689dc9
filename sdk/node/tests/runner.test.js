// A real worker process, spoken to over its descriptors.

import assert from "node:assert/strict";
import { cpSync, existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as module from "node:module";
import { after, before, describe, test } from "node:test";
import { version } from "../version.js";
import { Engine, folder, ID, run } from "./engine.js";

const SOURCE = `
import { spawn, spawnSync } from "node:child_process";
import { writeSync } from "node:fs";
import { Worker } from "node:worker_threads";
import { MRN } from "./neighbour.mjs";
import { router, handler, Send, Drop } from "coppice-worker";

process.on("SIGUSR2", () => {});

router(function route(msg) { return msg.hl7.get("MSH-9.2") === "A01" ? ["echo"] : []; });
handler(function echo(msg, ctx) {
  msg.tag({ mrn: MRN });
  return [new Send("emr", msg.body), new Send("archive", ctx.settings.facility)];
});
handler(() => new Drop("no MRN"), { name: "drop it" });
handler(function printing(msg, ctx) {
  console.log("x".repeat(200_000));
  process.stdout.write("printed");
  ctx.log.warning("logged %d", 1);
  writeSync(1, "to 1");
});
handler(function muted() {
  process.stdout.write = () => { throw new Error("no"); };
  process.stdout.destroy();
  process.stderr.end("end");
  Object.defineProperty(process, "stdout", { value: null });
});
handler(function throwing() { throw new RangeError("no such patient", { cause: new Error("the cause") }); });
handler(function nonsense(msg) { return { emr: msg.body }; });
handler(function large() { return new Send("emr", Buffer.alloc(2_000_000)); });
const sh = "for n in 3 4; do test -e /proc/self/fd/$n && readlink /proc/self/fd/$n; done; echo end";
handler(async function starting(msg, ctx) {
  const shown = (stdio) => new Promise((done) => {
    let text = "";
    const child = spawn("sh", ["-c", sh], { stdio, env: process.env });
    child.stdout.on("data", (b) => text += b).on("close", () => done(text.replace(/\\d{3,}/g, "N")));
  });
  return new Send("emr", JSON.stringify([
    await shown(["inherit", "pipe", "inherit"]), await shown(undefined), await shown(["inherit", "pipe", "inherit", 3, 4]),
    spawnSync("sh", ["-c", "echo inherited"], { stdio: "inherit" }).status,
  ]));
});
handler(function environment() { return new Send("emr", JSON.stringify(["COPPICE_WIRE" in process.env, process.env.COPPICE_WIRE ?? null])); });
handler(async function thread() {
  const worker = new Worker("console.log('in a thread'); require('worker_threads').parentPort.postMessage('COPPICE_WIRE' in process.env)", { eval: true });
  const got = await new Promise((done) => worker.once("message", done));
  await worker.terminate();
  return new Send("emr", String(got));
});
handler(function beginning() { setTimeout(() => console.log("ended between messages"), 50); });
handler(function exiting() { process.exit(5); });
handler(function rejecting() { Promise.reject(new Error("unseen")); return new Promise(() => {}); });
handler(function later() { setTimeout(() => { throw new Error("in a timer"); }, 1); });
`;
const NEIGHBOUR = { "neighbour.mjs": "export const MRN = '12345';" };
const missing = process.platform === "win32" ? "missing: descriptors 3 and 4 of a child, as tried on Unix alone" : false;
const noProc = existsSync("/proc/self/fd") ? false : "missing: /proc";

describe("a worker", { skip: missing }, () => {
  let engine;
  before(async () => {
    engine = new Engine(SOURCE, { neighbours: NEIGHBOUR });
    await engine.boot([["handle", "echo"], ["route", "route"]], { facility: "MERCY" }, 1_000_000);
  });
  after(() => engine.close());

  test("is ready", () => {
    assert.equal(engine.booted.type, "ready");
    assert.match(engine.booted.sdk, new RegExp(`^coppice-worker/${version} node/`));
    assert.ok(engine.booted.offers.some((o) => o.phase === "handle" && o.name === "drop it"));
  });

  test("results", async () => {
    const got = await engine.ask("echo", Buffer.from("MSH|\0\xff", "latin1"));
    assert.deepEqual([got.id, got.phase, got.name, got.tags], [ID, "handle", "echo", { mrn: "12345" }]);
    assert.deepEqual(got.sends, [{ to: "emr", body: Buffer.from("MSH|\0\xff", "latin1") }, { to: "archive", body: Buffer.from("MERCY") }]);
    assert.equal((await engine.ask("drop it")).drop, "no MRN");
    assert.deepEqual((await engine.ask("route", "MSH|^~\\&|||||||ADT^A01", "route")).handlers, ["echo"]);
    assert.deepEqual((await engine.ask("route", "MSH|^~\\&|", "route")).handlers, []);
  });

  test("what is printed harms nothing", async () => {
    assert.deepEqual((await engine.ask("printing")).sends, []);
    for (const want of ["xx\nprinted", "WARNING logged 1\n", "to 1"]) {
      assert.ok(engine.printed().includes(want), want);
    }
  });

  test("faults", async () => {
    const { error } = await engine.ask("throwing");
    assert.deepEqual([error.type, error.text], ["RangeError", "no such patient"]);
    assert.match(error.traceback, /at throwing \(.*adt\.mjs:\d+/);
    assert.match(error.traceback, /the cause/);
    assert.doesNotMatch(error.traceback, /coppice-worker|node:/);
    assert.equal((await engine.ask("nonsense")).error.type, "result");
    assert.match((await engine.ask("large")).error.text, /too large/);
    assert.equal((await engine.ask("nobody")).error.type, "offer");
    assert.equal((await engine.ask("echo")).type, "result");
  });

  // Node itself marks the descriptors: what can be shown is that the look finds them where they are handed over.
  test("started programs hold no wire", { skip: noProc }, async () => {
    const [inherit, standard, handed, status] = JSON.parse(await engine.body("starting"));
    assert.deepEqual([inherit, standard, status], ["end\n", "end\n", 0]);
    assert.match(handed, /^(socket|pipe):\[N\]\n(socket|pipe):\[N\]\nend\n$/);
    assert.ok(engine.printed().includes("inherited"));
  });

  // Red without the delete in Wire.fromEnvironment.
  test("environment and threads", async () => {
    assert.equal(await engine.body("environment"), "[false,null]");
    assert.equal(await engine.body("thread"), "false");
  });

  // Red with fs.readSync in Wire.read.
  test("timers run between messages", async () => {
    await engine.ask("beginning");
    await engine.prints("ended between messages");
  });
});

describe("ends", { skip: missing }, () => {
  const start = async (source = SOURCE) => {
    const engine = new Engine(source, { neighbours: NEIGHBOUR });
    await engine.boot();
    return engine;
  };

  test("end of stream", async () => {
    assert.equal(await (await start()).close(), 0);
    assert.equal(await new Engine("").close(), 0);
  });

  test("a destroyed stdout", async () => {
    const engine = await start();
    assert.deepEqual((await engine.ask("muted")).sends, []);
    assert.equal((await engine.ask("drop it")).drop, "no MRN");
    assert.equal(await engine.close(), 0);
  });

  // What is printed into a pipe has left before the answer does, but for what the pipe holds, also by a function that has put
  // its own in the place of write; and a pipe that nobody reads any more ends no worker. Red with the flush of printing()
  // emptied, or by process.stdout.write; red without its listener.
  test("stdout is a pipe", async () => {
    const engine = new Engine(`import { handler } from "coppice-worker";
      handler(function much() { process.stdout.write("x".repeat(8 << 20)); process.stdout.write = () => {}; });
      handler(function more() { delete process.stdout.write; console.log("x"); process.stdout.write("x".repeat(1 << 20)); });
    `, { stdout: "pipe" });
    let got = 0;
    engine.process.stdout.on("data", (b) => (got += b.length));
    await engine.boot();
    assert.deepEqual((await engine.ask("much")).sends, []);
    assert.ok(got > 6 << 20, `${got} bytes when the answer came`);
    engine.process.stdout.destroy();
    for (let i = 0; i < 3; i++) {
      assert.deepEqual((await engine.ask("more")).sends, []);
    }
    assert.equal(await engine.close(), 0);
  });

  test("exits and errors that nobody catches", async () => {
    for (const [name, status, text] of [["exiting", 5, ""], ["rejecting", 1, "unseen"], ["later", 1, "in a timer"]]) {
      const engine = await start();
      const got = await engine.ask(name);
      assert.ok(got === null || name === "later", name);
      assert.equal(await engine.ended, status, name);
      assert.ok(engine.printed().includes(text), name);
      await engine.close();
    }
  });

  // A function that waits for what never comes is the deadline's. Red without the setInterval in main: the worker exits.
  test("a function that never ends", async () => {
    const engine = new Engine(`import { handler } from "coppice-worker"; handler(function never() {
      setTimeout(() => console.log("still there"), 100).unref();
      return new Promise(() => {});
    });`);
    await engine.boot();
    engine.ask("never").catch(() => {}); // no answer comes
    engine.to.end(); // and there is nothing left to read
    await engine.prints("still there");
    engine.process.kill("SIGKILL");
    await engine.close();
  });

  // Red with main not catching Violation.
  test("a violation by the engine", async () => {
    const engine = new Engine("");
    engine.to.write(Buffer.from([0, 0, 0, 3, 1, 2, 3]));
    assert.equal(await engine.ended, 70);
    assert.match(engine.printed(), /^coppice-worker: by the engine: protocol violation: frame-short: [^\n]*\n$/);
    await engine.close();
  });

  test("no engine", () => {
    for (const [env, want] of [[{}, "coppice serve"], [{ COPPICE_WIRE: "3" }, "two numbers"], [{ COPPICE_WIRE: "900,901" }, "not open"]]) {
      const got = run(".", [], env);
      assert.equal(got.status, 78);
      assert.ok(got.stderr.includes(want), got.stderr);
      assert.doesNotMatch(got.stderr, /\n +at /);
    }
  });
});

describe("what does not boot", { skip: missing }, () => {
  const fault = async (source, offers = []) => {
    const engine = new Engine(source);
    const { type, error } = await engine.boot(offers);
    assert.equal(type, "bootfail");
    assert.equal(await engine.ended, 1);
    await engine.close();
    return error;
  };

  test("code that does not load", async () => {
    let error = await fault("\nfunction x(:\n");
    assert.equal(error.type, "SyntaxError");
    assert.match(error.traceback, /adt\.mjs:2\n/); // red without located
    error = await fault('import { nope } from "node:fs";');
    assert.match(error.traceback, /adt\.mjs:1\n/);
    error = await fault('\nimport "no-such-module";');
    assert.match(error.text, /Cannot find package 'no-such-module' imported from .*adt\.mjs/);
    error = await fault("\nnull.x;");
    assert.match(error.traceback, /adt\.mjs:2:\d+/);
    assert.doesNotMatch(error.traceback, /loading\.js|node:/);
    assert.equal((await fault("throw 1")).type, "thrown");
    const twice = 'import { handler } from "coppice-worker"; handler(function a() {}); handler(function a() {});';
    assert.match((await fault(twice)).text, /two handler functions are named "a"/);
  });

  // Red with missing returning null.
  test("offers", async () => {
    const source = 'import { handler, router } from "coppice-worker"; handler(function admit() {}); router(function route() {});';
    const { type, text } = await fault(source, [["handle", "admitt"]]);
    assert.deepEqual([type, text],
      ["offer", 'adt.mjs has no handler "admitt"; did you mean "admit"?; it offers: handler "admit", router "route"']);
    assert.match((await fault(source, [["handle", "route"]])).text, /"route" is a router/);
    assert.match((await fault("", [["route", "a"]])).text, /it offers nothing/);
  });
});

// A copy that npm has put beside the code, deeper than the one that runs, is that one. Red without globalThis in index.js.
test("a second copy of the SDK", { skip: missing }, async () => {
  const source = 'import { handler, Send } from "coppice-worker"; handler(function f() { return new Send("a", "1"); });';
  const engine = new Engine("");
  cpSync(join(engine.dir, "node_modules"), join(engine.dir, "sub", "node_modules"), { recursive: true });
  engine.file = join(engine.dir, "sub", "adt.mjs");
  writeFileSync(engine.file, source);
  assert.equal((await engine.boot([["handle", "f"]])).type, "ready");
  assert.equal(await engine.body("f"), "1");
  await engine.close();
});

describe("alone", () => {
  const alone = (args, source = SOURCE) => {
    const dir = folder({ "adt.mjs": source, ...NEIGHBOUR, "a01.hl7": "MSH|^~\\&|||||||ADT^A01|C1\rPID|1\r" }, false);
    try {
      return run(dir, ["run", ...args], { PATH: process.env.PATH });
    } finally {
      rmSync(dir, { recursive: true });
    }
  };
  // Before 18.19 and 20.6 Node has no hooks, and the package has to be installed.
  const hooks = module.register ? false : "missing: node with module.register";

  test("one function", { skip: hooks }, () => {
    const got = alone(["adt.mjs:echo", "a01.hl7", "--set", "facility=MERCY"]);
    assert.deepEqual([got.status, got.stderr], [0, ""]);
    assert.equal(got.stdout, "tag: mrn=12345\nsend to emr, 32 bytes:\nMSH|^~\\&|||||||ADT^A01|C1\nPID|1\nsend to archive, 5 bytes:\nMERCY\n");
    assert.equal(alone(["adt.mjs:route", "a01.hl7"]).stdout, "handlers: echo\n");
    assert.equal(alone(["adt.mjs:drop it", "a01.hl7"]).stdout, "drop: no MRN\n");
    const failed = alone(["adt.mjs:throwing", "a01.hl7"]);
    assert.equal(failed.status, 1);
    assert.match(failed.stderr, /no such patient/);
    const lacking = alone(["adt.mjs:ech", "a01.hl7"]);
    assert.equal(lacking.status, 1);
    assert.match(lacking.stderr, /did you mean "echo"\?/);
  });

  // Red without alone.js's look at the process's end.
  test("a function that ends its process has failed", { skip: hooks }, () => {
    for (const how of ["process.exit(0)", "process.exit(3)", "return new Promise(() => {})"]) {
      const got = alone(["adt.mjs:f", "a01.hl7"], `import { handler } from "coppice-worker"; handler(function f() { ${how} });`);
      assert.equal(got.status, 1, how);
      assert.match(got.stderr, /an engine takes the one for a crash/);
    }
  });

  test("usage", () => {
    for (const args of [["adt.mjs", "a01.hl7"], ["adt.mjs:echo"], ["adt.mjs:echo", "a01.hl7", "--timeout", "x"], ["--no"]]) {
      assert.equal(alone(args).status, 2, args.join(" "));
    }
    assert.match(alone(["adt.mjs:echo", "none.hl7"]).stderr, /ENOENT.*none\.hl7/);
  });
});
