// Write Coppice handlers in JavaScript.
//
//     import { router, handler, Send, Drop } from "coppice-worker";
//
//     router(function route(msg, ctx) {
//       return msg.hl7.get("MSH-9.2") === "A01" ? ["admit"] : [];
//     });
//
//     handler(function admit(msg, ctx) {
//       return new Send("emr", msg.body);
//     });
//
// index.d.ts says what each of them does, and README.md how to begin. The package needs Node 18 and its standard library
// alone. protocol/PROTOCOL.md is the specification of what it speaks.

import * as own from "./functions.js";

// One process has one registry: a second copy of this package, which npm has put beside the user's code, is the first one.
export const { Context, Drop, Message, Send, handler, router } = (globalThis[Symbol.for("coppice-worker")] ??= own);
