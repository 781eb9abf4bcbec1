// What a text in the search box may mean, and where meshkeep is asked for it. Nothing here lists all of anything: each question has a limit.

import { ask, askMaybe, query } from "./api.js";
import { mirror } from "./mirror.js";
import { hash } from "./route.js";
import { address, labels } from "./words.js";

/** Names of services and nodes that are known for completion: an answer of 100 KB, compressed, at most. */
const NAMES_MAX = 10_000;
/** They are read again where they are needed after so long: what is new is found, and typing asks for them once. */
const NAMES_LAST_MS = 30_000;

const PREFIX = /^([0-9a-f:.]+)\/(\d{1,3})$/i;

/** What it is by its form: `address`, `prefix`, `number`, `labels`, `pair` or `word`. */
export function form(text) {
  if (address(text)) return "address";
  const prefix = PREFIX.exec(text);
  if (prefix && address(prefix[1])) return "prefix";
  if (/^\d{1,10}$/.test(text)) return "number";
  if (/[=]|^[a-z][a-z0-9]*:\S+$|^!|\b(in|notin)\s*\(/i.test(text)) return "labels";
  return /^[^/\s]+\/[^/\s]+$/.test(text) ? "pair" : "word";
}

let names = null;
let namesAt = 0;

/** Names of services and nodes, as of half a minute ago at most. */
export function readNames() {
  if (Date.now() - namesAt > NAMES_LAST_MS) [names, namesAt] = [null, Date.now()];
  names ??= Promise.all([
    ask(`/v1/global-services${query({ fields: "namespace,name", limit: NAMES_MAX, meta: "none" })}`),
    ask(`/v1/nodes${query({ fields: "cluster,name", limit: NAMES_MAX, meta: "none" })}`),
  ])
    .then(([services, nodes]) => ({ services: services.items.map((one) => `${one.namespace}/${one.name}`), nodes: nodes.items.map((one) => `${one.cluster}/${one.name}`) }))
    .catch(() => {
      names = null;
      return { services: [], nodes: [] };
    });
  return names;
}

export const found = {
  cluster: (object) => ({ kind: "cluster", title: object.name, note: object.phase, href: hash("mesh", [object.name]) }),
  service: (name) => ({ kind: "service", title: name, note: "", href: hash("services", name.split("/")) }),
  node: (name) => ({ kind: "node", title: name, note: "", href: hash("find", [name]) }),
  entry: (entry) => ({
    kind: "address",
    title: entry.prefix.replace(/\/(32|128)$/, ""),
    note: [entry.podName && `${entry.namespace}/${entry.podName}`, entry.cluster, `identity ${entry.identity}`].filter(Boolean).join(" · "),
    href: hash("explain", [entry.prefix.split("/")[0]]),
  }),
  identity: (one) => ({ kind: "identity", title: String(one.id), note: [one.cluster ?? one.reserved, ...labels(one.labels).slice(0, 3)].filter(Boolean).join(" · "), href: hash("find", [String(one.id)]) }),
};

/** Addresses that a filter finds, at most so many, and whether there are more. */
async function entries(filter, limit, signal) {
  const answer = await ask(`/v1/ipcache${query({ ...filter, limit, meta: "none" })}`, signal);
  return { items: answer.items, next: answer.nextPageToken };
}

/** Suggestions for a text, while one types: `[{kind, title, note, href}]`. */
export async function suggest(text, limit, signal) {
  switch (form(text)) {
    case "address": {
      const { match } = await ask(`/v1/ipcache/lookup${query({ ip: text, meta: "none" })}`, signal);
      const note = match ? found.entry(match).note : "nobody's: why?";
      return [{ kind: "explain", title: text, note, href: hash("explain", [text]) }];
    }
    case "prefix": {
      const all = { kind: "prefix", title: text, note: "what lies inside", href: hash("find", [text]) };
      return [all, ...(await entries({ cidr: text }, limit, signal)).items.map(found.entry)];
    }
    case "number": {
      const { items } = await entries({ identity: text }, limit, signal);
      // only one that has addresses is asked for by its number while one types: each digit more is another
      const one = items.length > 0 ? await askMaybe(`/v1/identities/${text}`, signal) : null;
      const itself = one ? found.identity(one) : { kind: "identity", title: text, note: "has it labels?", href: hash("find", [text]) };
      return [itself, ...items.map(found.entry)];
    }
    case "labels": {
      const [identities, services] = await Promise.all([
        ask(`/v1/identities${query({ labelSelector: text, limit, meta: "none" })}`, signal),
        ask(`/v1/global-services${query({ labelSelector: text, limit, fields: "namespace,name", meta: "none" })}`, signal),
      ]);
      const all = { kind: "label", title: text, note: "identities and services with it", href: hash("find", [text]) };
      return [all, ...identities.items.map(found.identity), ...services.items.map((one) => found.service(`${one.namespace}/${one.name}`))];
    }
    default:
      return byName(text, limit, signal);
  }
}

/** What has a name that holds the text; pods only by their whole names, which have no list here. */
async function byName(text, limit, signal) {
  const [namespace, pod] = text.includes("/") ? text.split("/", 2) : [undefined, text];
  const [{ services, nodes }, pods] = await Promise.all([readNames(), pod ? entries({ namespace, pod }, limit, signal).catch(() => ({ items: [] })) : { items: [] }]);
  const holds = (name) => name.toLowerCase().includes(text.toLowerCase());
  // what begins so comes first
  const best = (all) => all.filter(holds).sort((one, other) => begins(other, text) - begins(one, text)).slice(0, limit);
  const clusters = best([...mirror.clusters.keys()]).map((name) => found.cluster(mirror.clusters.get(name).object));
  return [...clusters.slice(0, 4), ...pods.items.map(found.entry), ...best(services).map(found.service), ...best(nodes).map(found.node)].slice(0, limit * 2);
}

function begins(name, text) {
  return name.startsWith(text) || name.split("/").pop().startsWith(text) ? 1 : 0;
}

/** Where Enter leads without a suggestion. */
export function target(text) {
  return form(text) === "address" ? hash("explain", [text.toLowerCase()]) : hash("find", [text]);
}
