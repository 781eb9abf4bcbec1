// Parts of read_all.ts and read_all_hey_api.ts that do not use a client: the copy of the changes,
// and the output. The types are those of openapi-typescript. The compiler accepts hey-api's objects
// only if both generators agree on their members.

import type { components } from "./schema.js";

type Schemas = components["schemas"];

/** Answers that a program read with its client. */
interface Answers {
  nodes: Schemas["Node"][];
  services: Schemas["Service"][];
  lookup: Schemas["LookupAnswer"];
  batch: Schemas["LookupItem"][];
  problem: string | undefined;
  unchanged: number | undefined;
  stream: Schemas["WatchEvent"][];
  changes: Map<string, string>;
}

/** Describes an event by its object, decoded according to its kind. */
function describe(event: Schemas["WatchEvent"]): string {
  const object = event.object!;
  if (event.kind === "node" && "addresses" in object) return `node ${object.cluster}/${object.name}`;
  if (event.kind === "service" && "frontends" in object) return `service ${object.cluster}/${object.namespace}/${object.name}`;
  if (event.kind === "ipcache" && "prefix" in object) return `ipcache ${object.prefix}`;
  if (event.kind === "problem" && "advice" in object) return `problem ${object.id}`;
  return event.kind!;
}

/** Applies changes to a map from keys to descriptions. */
export function applyEvents(objects: Map<string, string>, events: Schemas["WatchEvent"][]): void {
  for (const event of events) {
    if (event.type === "reset") objects.clear();
    else if (event.type === "upsert") objects.set(event.key!, describe(event));
    else if (event.type === "delete") objects.delete(event.key!);
  }
}

/** Prints the answers as one JSON object, like the other generated clients. */
export function printAnswers({ nodes, services, lookup, batch, problem, unchanged, stream, changes }: Answers): void {
  const entry = ({ match }: { match?: Schemas["IpcacheEntry"] | null }) => `${match?.cluster}/${match?.prefix}`;
  console.log(
    JSON.stringify({
      nodes: nodes.map((node) => `${node.cluster}/${node.name}`),
      services: services.map((service) => `${service.cluster}/${service.namespace}/${service.name}`),
      lookup: entry(lookup),
      batch: batch.map(entry),
      problem,
      unchanged,
      stream: stream.map((event) => event.mode),
      changes: Object.fromEntries(changes),
    }),
  );
}
