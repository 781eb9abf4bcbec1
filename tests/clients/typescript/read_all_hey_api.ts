// Does what read_all.ts does, with the client that @hey-api/openapi-ts generates:
// read_all_hey_api.js BASE_URL

import { client } from "./hey_api/client.gen.js";
import { getNode, listChanges, listNodes, listServices, lookupIp, lookupIps, watchEvents } from "./hey_api/sdk.gen.js";
import type { Changes, Node, WatchEvent } from "./hey_api/types.gen.js";
import { applyEvents, printAnswers } from "./report.js";

const PAGE_LIMIT = 3;
client.setConfig({ baseUrl: process.argv[2]! });

async function nodes(): Promise<Node[]> {
  const items: Node[] = [];
  let more = {};
  for (;;) {
    const { data: page } = await listNodes({ query: { limit: PAGE_LIMIT, ...more }, throwOnError: true });
    items.push(...page.items);
    if (page.nextPageToken === undefined) return items;
    more = { pageToken: page.nextPageToken };
  }
}

async function changes(): Promise<Map<string, string>> {
  const objects = new Map<string, string>();
  let position: { snapshot: true } | { after: string } = { snapshot: true };
  for (;;) {
    const { data }: { data: Changes } = await listChanges({ query: { limit: 7, ...position }, throwOnError: true });
    applyEvents(objects, data.events);
    if (!data.more) return objects;
    position = { after: data.nextPosition };
  }
}

/** Follows the stream until it has caught up, after a position if there is one. */
async function synced(position?: string): Promise<WatchEvent> {
  const stop = new AbortController();
  const { stream } = await watchEvents({
    query: { kind: ["node"], snapshot: true },
    ...(position ? { headers: { "Last-Event-ID": position } } : {}),
    signal: stop.signal,
  });
  try {
    for await (const data of stream) {
      const event = data as unknown as WatchEvent;
      if (event.type === "synced") return event;
    }
  } finally {
    // the end of the loop leaves the connection open
    stop.abort();
  }
  throw new Error("the stream ended");
}

const found = await nodes();
const { data: services, response } = await listServices({ throwOnError: true });
const ips = found.map((node) => node.addresses[0]!.ip);
const { data: lookup } = await lookupIp({ query: { ip: ips[0]! }, throwOnError: true });
const { data: batch } = await lookupIps({ body: { ips }, throwOnError: true });
const unchanged = await listServices({ headers: { "If-None-Match": response.headers.get("ETag")! } });
const snapshot = await synced();
const replay = await synced(snapshot.position!);
const problem = await getNode({ path: { cluster: "nowhere", name: "nobody" } });
printAnswers({
  nodes: found,
  services: services.items,
  lookup,
  batch: batch.items,
  problem: problem.error?.code,
  unchanged: unchanged.response?.status,
  stream: [snapshot, replay],
  changes: await changes(),
});
