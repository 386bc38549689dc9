#!/usr/bin/env node
// The program that an engine starts: node .../coppice-worker/main.js. With the argument "run" it calls one function alone.

import { main } from "./runner.js";

process.exit(await main(process.argv.slice(2)));
