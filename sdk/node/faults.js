// What was thrown in the terms of the wire: type, text and traceback, capped.

import { inspect } from "node:util";
import { scrub } from "./text.js";

export const TEXT_CAP = 64 << 10; // bytes of each text of a fault
const CUT = "[... cut ...]";
// Frames that say nothing to the user: Node's own, and those of the files that call his functions.
const OURS = new RegExp(`^ +at .*(?:node:|${["alone", "calling", "loading", "main", "runner"].map((f) => own(`./${f}.js`)).join("|")})`);

function own(file) {
  return new URL(file, import.meta.url).href.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
}

/** A fault that no error stands behind. */
export function plain(type, text, traceback = "") {
  return { type, text: head(text), traceback: head(traceback) };
}

/** The fault of what was thrown, which may be any value. It does not throw, whatever the value's own methods do. */
export function of(thrown) {
  const attempt = (what, get) => {
    try {
      return String(get());
    } catch {
      return `<${what} of what was thrown throws itself>`;
    }
  };
  const isError = attempt("the stack", () => typeof thrown?.stack === "string") === "true";
  return plain(
    isError ? attempt("the name", () => thrown.name) : "thrown",
    attempt("the text", () => (isError ? thrown.message : inspect(thrown))),
    isError ? attempt("the stack", () => traceback(thrown)) : "",
  );
}

/** The stack, with the causes that inspect knows of. */
function traceback(e) {
  return inspect(e)
    .split("\n")
    .filter((line) => !OURS.test(line))
    .join("\n");
}

/** The start of a text, within the cap: JavaScript's stacks begin with the most recent call. */
export function head(text) {
  const raw = Buffer.from(scrub(text.slice(0, TEXT_CAP + 1)));
  if (raw.length <= TEXT_CAP) {
    return raw.toString();
  }
  return raw.toString("utf8", 0, TEXT_CAP - CUT.length - 3).replace(/\ufffd$/, "") + CUT;
}
