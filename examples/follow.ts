// Keeps a copy of the ipcache of all clusters, with openapi-fetch and eventsource-parser: follow.js [http://127.0.0.1:9870]
// schema.d.ts is made by `npx openapi-typescript openapi.json -o schema.d.ts`.
import { setTimeout } from "node:timers/promises";
import { EventSourceParserStream } from "eventsource-parser/stream";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type WatchEvent = components["schemas"]["WatchEvent"];
const client = createClient<paths>({ baseUrl: process.argv[2] ?? "http://127.0.0.1:9870" });
let copy: Record<string, WatchEvent["object"]> = {};
let position: string | undefined;

async function follow(): Promise<void> {
  const { data: stream, error } = await client.GET("/v1/events", {
    params: { query: { kind: ["ipcache"], snapshot: true }, header: position ? { "Last-Event-ID": position } : {} },
    headers: { Accept: "text/event-stream" },
    parseAs: "stream",
  });
  if (!stream) throw new Error(error?.detail);
  let [fresh, synced] = [copy, false];
  for await (const { id, data } of stream.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream())) {
    const event: WatchEvent = JSON.parse(data);
    // the position is no longer valid: everything is sent again
    if (event.type === "reset") [fresh, synced] = [{}, false];
    else if (event.type === "upsert") fresh[event.key!] = event.object;
    else if (event.type === "delete") delete fresh[event.key!];
    // all up to here was told, changes follow
    else if (event.type === "synced") [copy, synced] = [fresh, true];
    if (!synced) continue;
    position = id ?? position;
    console.log(JSON.stringify({ position, entries: copy }));
  }
}

for (;;) {
  await follow().catch((error) => console.error(`${error}; trying again`));
  await setTimeout(1000);
}
