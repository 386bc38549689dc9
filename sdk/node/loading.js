// Loads a user's file: the first code that is not trusted.

import { spawnSync } from "node:child_process";
import { basename, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import * as faults from "./faults.js";
import { HANDLE, OFFERED, ROUTE, WORDS } from "./functions.js";

export const OFFER = "offer"; // the type of a fault: the file lacks a function that the engine asks for
const CHECK_LIMIT = 5000; // ms

/** Runs a file as a module. Returns null, or the fault of one that cannot be loaded. */
export async function load(file) {
  const path = resolve(file);
  try {
    await import(pathToFileURL(path).href);
    return null;
  } catch (e) {
    const fault = faults.of(e);
    return fault.type === "SyntaxError" && !fault.traceback.includes(basename(path)) ? located(fault, path) : fault;
  }
}

/** A fault of syntax with the place of it. import() does not say where a file cannot be parsed; node --check does. */
function located(fault, path) {
  const checked = spawnSync(process.execPath, ["--check", path], { encoding: "utf8", timeout: CHECK_LIMIT, stdio: ["ignore", "ignore", "pipe"] });
  return checked.status === 1 ? { ...fault, traceback: faults.head(checked.stderr.replace(/\n +at [^]*$/, "\n")) } : fault;
}

/** The fault of a file that lacks a function that the engine asks for, or null. */
export function missing(file, wanted) {
  const lacking = wanted.find(({ phase, name }) => OFFERED.get(phase, name) === undefined);
  return lacking === undefined ? null : faults.plain(OFFER, lacks(basename(file), lacking));
}

function lacks(file, { phase, name }) {
  const have = OFFERED.offers();
  let text = `${file} has no ${WORDS[phase]} "${name}"`;
  if (have.length === 0) {
    return text + "; it offers nothing: put router(...) or handler(...) around a function";
  }
  const other = phase === ROUTE ? HANDLE : ROUTE;
  if (OFFERED.get(other, name) !== undefined) {
    text += `; "${name}" is a ${WORDS[other]}`;
  }
  const near = nearest(name, have.filter((o) => o.phase === phase).map((o) => o.name));
  if (near !== undefined) {
    text += `; did you mean "${near}"?`;
  }
  return `${text}; it offers: ${have.map((o) => `${WORDS[o.phase]} "${o.name}"`).join(", ")}`;
}

/** The name that takes the fewest edits, if that is a third of its letters at most. */
function nearest(name, names) {
  const ranked = names.map((n) => ({ n, cost: edits(name, n) })).sort((a, b) => a.cost - b.cost);
  return ranked.find(({ n, cost }) => cost <= Math.max(n.length, name.length) / 3)?.n;
}

/** How many letters have to be changed, put in or taken out (Levenshtein). */
function edits(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)));
    }
    row = next;
  }
  return row[b.length];
}
