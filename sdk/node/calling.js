// Calls one function of the user's and makes its answer, whatever it returns or throws.

import * as faults from "./faults.js";
import { Drop, HANDLE, Message, Send } from "./functions.js";

export const RESULT = "result"; // the type of a fault: the function returned what no result can say

/** The function returned what no result can say; the text tells the user what it may return. */
class BadResult extends Error {
  #ours;

  /** Unlike instanceof, this asks nothing of what was thrown. */
  static is(thrown) {
    return Object(thrown) === thrown && #ours in thrown;
  }
}

/** The fields of a result, or of a fail. */
export async function answer(request, f, ctx) {
  const tags = new Map();
  let fields;
  try {
    const value = await settle(f(new Message(request, tags), ctx));
    fields = request.phase === HANDLE ? sends(request.name, value) : handlers(request.name, value);
  } catch (e) {
    return { type: "fail", error: BadResult.is(e) ? faults.plain(RESULT, e.message) : faults.of(e) };
  }
  return { type: "result", ...fields, ...(tags.size > 0 && { tags: Object.fromEntries(tags) }) };
}

/** Runs what a function only began: a promise, a generator. */
async function settle(begun) {
  const value = await begun;
  if (Array.isArray(value) || typeof value?.next !== "function") {
    return value;
  }
  const items = [];
  if (Symbol.iterator in value) {
    items.push(...value);
  } else if (Symbol.asyncIterator in value) {
    for await (const item of value) {
      items.push(item);
    }
  }
  return items;
}

function sends(name, value) {
  if (value instanceof Drop) {
    return { drop: value.reason };
  }
  const all = value instanceof Send ? [value] : (value ?? []);
  if (!Array.isArray(all)) {
    throw new BadResult(
      `handler "${name}" returned ${kind(value)}; it may return nothing, a Send, a Drop, or an array or generator of Send`,
    );
  }
  for (const [i, item] of all.entries()) {
    if (item instanceof Drop) {
      throw new BadResult(`handler "${name}" returned an array with a Drop in it; return the Drop alone`);
    }
    if (!(item instanceof Send)) {
      throw new BadResult(`handler "${name}" returned an array whose item ${i} is ${kind(item)}, not a Send`);
    }
  }
  return { sends: Array.from(all, ({ to, body }) => ({ to, body })) };
}

function handlers(name, value) {
  const all = typeof value === "string" ? [value] : (value ?? []);
  if (!Array.isArray(all)) {
    throw new BadResult(
      `router "${name}" returned ${kind(value)}; it may return nothing, the name of a handler, or an array or generator of names`,
    );
  }
  for (const [i, item] of all.entries()) {
    if (typeof item !== "string" || item === "") {
      throw new BadResult(`router "${name}" returned an array whose item ${i} is ${kind(item)}, not the name of a handler`);
    }
  }
  return { handlers: Array.from(all) };
}

function kind(value) {
  if (value === undefined || value === null || value === "") {
    return value === "" ? "an empty string" : String(value);
  }
  const name = typeof value === "object" ? String(value.constructor?.name ?? "object") : typeof value;
  return `${/^[aeiou]/i.test(name) ? "an" : "a"} ${name}`;
}
