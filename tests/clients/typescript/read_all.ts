// Reads nodes, services, lookups, an error, an unchanged list, the stream and all changes with
// openapi-fetch and the types generated from the OpenAPI document, and prints everything as one JSON
// object, like the other generated clients: read_all.js BASE_URL

import { EventSourceParserStream } from "eventsource-parser/stream";
import createClient from "openapi-fetch";
import { applyEvents, printAnswers } from "./report.js";
import type { components, paths } from "./schema.js";

const PAGE_LIMIT = 3;
const base = process.argv[2]!;
const client = createClient<paths>({ baseUrl: base });

function answered<T>(answer: { data?: T; error?: components["schemas"]["Problem"] }): T {
  if (answer.data === undefined) throw new Error(answer.error?.detail ?? "no answer");
  return answer.data;
}

async function nodes(): Promise<components["schemas"]["Node"][]> {
  const items: components["schemas"]["Node"][] = [];
  let more = {};
  for (;;) {
    const page = answered(await client.GET("/v1/nodes", { params: { query: { limit: PAGE_LIMIT, ...more } } }));
    if (page.items.length > PAGE_LIMIT) throw new Error("a page is too long");
    items.push(...page.items);
    if (page.nextPageToken === undefined) return items;
    more = { pageToken: page.nextPageToken };
  }
}

async function changes(): Promise<Map<string, string>> {
  const objects = new Map<string, string>();
  let position: { snapshot: true } | { after: string } = { snapshot: true };
  for (;;) {
    const answer: components["schemas"]["Changes"] = answered(await client.GET("/v1/changes", { params: { query: { limit: 7, ...position } } }));
    applyEvents(objects, answer.events);
    if (!answer.more) return objects;
    position = { after: answer.nextPosition };
  }
}

/** Follows the stream until it has caught up, after a position if there is one. */
async function synced(position?: string): Promise<components["schemas"]["WatchEvent"]> {
  const { data: stream } = await client.GET("/v1/events", {
    params: { query: { kind: ["node"], snapshot: true }, header: position ? { "Last-Event-ID": position } : {} },
    parseAs: "stream",
  });
  for await (const { data } of stream!.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream())) {
    const event: components["schemas"]["WatchEvent"] = JSON.parse(data);
    if (event.type === "synced") return event;
  }
  throw new Error("the stream ended");
}

const found = await nodes();
const services = answered(await client.GET("/v1/services", {}));
const ip = found[0]!.addresses[0]!.ip;
const lookup = answered(await client.GET("/v1/ipcache/lookup", { params: { query: { ip } } }));
const batch = answered(await client.POST("/v1/ipcache/lookup", { body: { ips: found.map((node) => node.addresses[0]!.ip) } }));
const { response } = await client.GET("/v1/services", {});
const unchanged = await client.GET("/v1/services", { params: { header: { "If-None-Match": response.headers.get("ETag")! } } });
const snapshot = await synced();
const replay = await synced(snapshot.position!);
const problem = await client.GET("/v1/nodes/{cluster}/{name}", { params: { path: { cluster: "nowhere", name: "nobody" } } });
printAnswers({
  nodes: found,
  services: services.items,
  lookup,
  batch: batch.items,
  problem: problem.error?.code,
  unchanged: unchanged.response.status,
  stream: [snapshot, replay],
  changes: await changes(),
});
