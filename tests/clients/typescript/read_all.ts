// Reads nodes, services, lookups, an error, an unchanged list, the stream and all changes with
// openapi-fetch and the types generated from the OpenAPI document, and prints everything as one JSON
// object, like the other generated clients: read_all.js BASE_URL

import { EventSourceParserStream } from "eventsource-parser/stream";
import createClient from "openapi-fetch";
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

/** Describes an event by its object, decoded according to its kind. */
function describe(event: components["schemas"]["WatchEvent"]): string {
  const object = event.object!;
  if (event.kind === "node" && "addresses" in object) return `node ${object.cluster}/${object.name}`;
  if (event.kind === "service" && "frontends" in object) return `service ${object.cluster}/${object.namespace}/${object.name}`;
  if (event.kind === "ipcache" && "prefix" in object) return `ipcache ${object.prefix}`;
  if (event.kind === "problem" && "advice" in object) return `problem ${object.id}`;
  return event.kind!;
}

async function changes(): Promise<Record<string, string>> {
  const objects = new Map<string, string>();
  let position: { snapshot: true } | { after: string } = { snapshot: true };
  for (;;) {
    const answer: components["schemas"]["Changes"] = answered(await client.GET("/v1/changes", { params: { query: { limit: 7, ...position } } }));
    for (const event of answer.events) {
      if (event.type === "reset") objects.clear();
      else if (event.type === "upsert") objects.set(event.key!, describe(event));
      else if (event.type === "delete") objects.delete(event.key!);
    }
    if (!answer.more) return Object.fromEntries(objects);
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
console.log(
  JSON.stringify({
    nodes: found.map((node) => `${node.cluster}/${node.name}`),
    services: services.items.map((service) => `${service.cluster}/${service.namespace}/${service.name}`),
    lookup: `${lookup.match?.cluster}/${lookup.match?.prefix}`,
    batch: batch.items.map((item) => `${item.match?.cluster}/${item.match?.prefix}`),
    problem: problem.error?.code,
    unchanged: unchanged.response.status,
    stream: [snapshot.mode, replay.mode],
    changes: await changes(),
  }),
);
