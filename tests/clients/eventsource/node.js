// The npm package `eventsource`: node.js BASE DIRECTORY-OF-node_modules
import { createRequire } from "node:module";
import { follow } from "./follow.js";

const [base, directory] = process.argv.slice(2);
const { EventSource } = createRequire(`${directory}/`)("eventsource");
follow(EventSource, base, (text) => process.stdout.write(`${text}\n`));
