// Calls one function on one file, without an engine: node main.js run adt.mjs:admit MESSAGE.

import { readFileSync } from "node:fs";
import * as module from "node:module";
import { parseArgs } from "node:util";
import { answer } from "./calling.js";
import { Context, HANDLE, Message, OFFERED, ROUTE } from "./functions.js";
import * as faults from "./faults.js";
import { load, missing } from "./loading.js";

const USAGE = `usage: coppice-worker run FILE:FUNCTION MESSAGE [--set NAME=VALUE]... [--timeout SECONDS]

Calls one function, such as adt.mjs:admit, on a file with one message (- for stdin), and prints what it would send.
--set is a setting for ctx.settings, --timeout what ctx.deadline shows.`;

/** Prints what the function would send. Returns 0, 1 when the function failed, 2 for wrong usage. */
export async function main(args) {
  let options;
  try {
    options = read(args);
  } catch (e) {
    console.error(`${USAGE}\n\n${e.message}`);
    return 2;
  }
  const { file, name, message, settings, timeout } = options;
  resolveOurselves();
  let request;
  try {
    request = requestOf(readFileSync(message === "-" ? 0 : message));
  } catch (e) {
    return failed(faults.of(e));
  }
  const fault = await load(file);
  if (fault !== null) {
    return failed(fault);
  }
  const phase = OFFERED.get(HANDLE, name) === undefined && OFFERED.get(ROUTE, name) !== undefined ? ROUTE : HANDLE;
  const lacking = missing(file, [{ phase, name }]);
  if (lacking !== null) {
    return failed(lacking);
  }
  const ctx = new Context(settings, performance.now() + timeout * 1000);
  let back = false;
  process.once("exit", (status) => {
    if (!back) {
      console.error(`${name} ended its process with status ${status}, or waits for what never comes; an engine takes the one for a crash and cuts the other`);
      process.exitCode = 1;
    }
  });
  const answered = await answer({ ...request, phase, name }, OFFERED.get(phase, name), ctx);
  back = true;
  if (answered.type === "fail") {
    return failed(answered.error);
  }
  show(answered);
  return 0;
}

function read(args) {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: { set: { type: "string", multiple: true, default: [] }, timeout: { type: "string", default: "60" } },
  });
  const [, file, name] = /^(.+):([^:]+)$/.exec(positionals[0] ?? "") ?? [];
  const timeout = Number(values.timeout);
  if (file === undefined || positionals.length !== 2 || !(timeout >= 0)) {
    throw new Error("name a file and its function, adt.mjs:admit, and a message");
  }
  const settings = Object.fromEntries(values.set.map((s) => [s.split("=", 1)[0], s.split("=").slice(1).join("=")]));
  return { file, name, message: positionals[1], settings, timeout };
}

/** Has import "coppice-worker" find this package from anywhere. An engine puts it beside the code instead: a thread for these
 * hooks, which Node has before 22.15, makes a start 90 ms longer. */
function resolveOurselves() {
  const url = new URL("./index.js", import.meta.url).href;
  const resolve = (specifier, context, next) =>
    specifier === "coppice-worker" ? { url, shortCircuit: true } : next(specifier, context);
  if (module.registerHooks) {
    module.registerHooks({ resolve });
  } else if (module.register) {
    // 18.19 and 20.6; before, what npm install has put beside the code is found, and nothing else.
    module.register(`data:text/javascript,${encodeURIComponent(`const url = ${JSON.stringify(url)}; export const resolve = ${resolve};`)}`);
  }
}

function requestOf(body) {
  const received = new Date().toISOString();
  const request = { message: 1, inbound: "alone", msgtype: "", control: "", received, attempt: 1, body };
  try {
    const { hl7 } = new Message(request);
    return { ...request, msgtype: hl7.get("MSH-9"), control: hl7.get("MSH-10") };
  } catch {
    return request; // not HL7: the engine leaves both empty as well
  }
}

function failed({ type, text, traceback }) {
  console.error(traceback.trimEnd() || `${type}: ${text}`);
  return 1;
}

function show({ handlers, drop, tags = {}, sends }) {
  if (handlers !== undefined) {
    console.log(`handlers: ${handlers.join(", ") || "none"}`);
  }
  if (drop !== undefined) {
    console.log(`drop: ${drop}`);
  }
  for (const [name, value] of Object.entries(tags)) {
    console.log(`tag: ${name}=${value}`);
  }
  if (sends?.length === 0) {
    console.log("sends nothing");
  }
  for (const { to, body } of sends ?? []) {
    console.log(`send to ${to}, ${body.length} bytes:\n${body.toString().replace(/\r\n?/g, "\n").trimEnd()}`);
  }
}
