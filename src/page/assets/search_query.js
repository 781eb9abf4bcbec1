// Interprets the text in the search box and sends the matching requests. Each request has a limit.

import { ask, askMaybe, query } from "./api.js";
import { mirror } from "./mirror.js";
import { hash } from "./route.js";
import { address, labels } from "./words.js";

/**
 * Maximum number of service and node names for completion: an answer of at most 100 KB, compressed.
 */
export const NAMES_MAX = 10_000;
/** Time after which the names are read again when they are needed, in ms. */
const NAMES_AGE_MAX_MS = 30_000;

const PREFIX = /^([0-9a-f:.]+)\/(\d{1,3})$/i;

/** Returns the form of the text: `address`, `prefix`, `number`, `labels`, `pair` or `word`. */
export function textKind(text) {
  if (address(text)) return "address";
  const prefix = PREFIX.exec(text);
  if (prefix && address(prefix[1])) return "prefix";
  if (/^\d{1,10}$/.test(text)) return "number";
  if (/[=]|^[a-z][a-z0-9]*:\S+$|^!|\b(in|notin)\s*\(/i.test(text)) return "labels";
  return /^[^/\s]+\/[^/\s]+$/.test(text) ? "pair" : "word";
}

let names = null;
let namesReadAt = 0;

/**
 * Returns the names of services and nodes, at most half a minute old. `isAll` is false if there are
 * more names.
 */
export function readNames() {
  if (Date.now() - namesReadAt > NAMES_AGE_MAX_MS) [names, namesReadAt] = [null, Date.now()];
  names ??= Promise.all([
    ask(`/v1/global-services${query({ fields: "namespace,name", limit: NAMES_MAX, meta: "none" })}`),
    ask(`/v1/nodes${query({ fields: "cluster,name", limit: NAMES_MAX, meta: "none" })}`),
  ])
    .then(([services, nodes]) => ({ services: services.items.map(nameOfService), nodes: nodes.items.map(nameOfNode), isAll: !services.nextPageToken && !nodes.nextPageToken }))
    .catch((error) => {
      names = null;
      throw error;
    });
  return names;
}

const nameOfService = (one) => `${one.namespace}/${one.name}`;
const nameOfNode = (one) => `${one.cluster}/${one.name}`;

/**
 * Returns the first page with items, or the last page. A page can be empty although the list
 * continues.
 */
export async function firstPage(path, filter, signal) {
  let pageToken;
  for (;;) {
    const answer = await ask(`${path}${query({ ...filter, meta: "none", pageToken })}`, signal);
    if (answer.items.length > 0 || !answer.nextPageToken) return answer;
    pageToken = answer.nextPageToken;
  }
}

/** Parses `name`, `before/name` or `cluster/before/name`. Returns null for other texts. */
function parts(text) {
  const [name, before, cluster, ...more] = text.split("/").reverse();
  return name === "" || before === "" || more.length > 0 || (cluster !== undefined && !mirror.clusters.has(cluster)) ? null : { cluster, before, name };
}

/** Requests the services of exactly this name, because the known names may be old or incomplete. */
export async function servicesCalled(text, filter, signal) {
  const called = parts(text);
  if (!called) return [];
  return (await firstPage("/v1/global-services", { ...filter, cluster: called.cluster, namespace: called.before, name: called.name }, signal)).items;
}

/** Requests the services and nodes of exactly this name. */
export async function findExactly(text, limit, signal) {
  const called = parts(text);
  const mayBeNode = called && !called.cluster && (called.before === undefined || mirror.clusters.has(called.before));
  const [services, nodes] = await Promise.all([
    servicesCalled(text, { fields: "namespace,name", limit }, signal),
    mayBeNode ? firstPage("/v1/nodes", { cluster: called.before, name: called.name, fields: "cluster,name", limit }, signal) : { items: [] },
  ]);
  return { services: services.map(nameOfService), nodes: nodes.items.map(nameOfNode) };
}

/** Merges two lists of names without duplicates. */
export function mergeNames(names, more) {
  return [...new Set([...names, ...more])];
}

export const suggestionOf = {
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

/** Requests the addresses that match a filter, up to a maximum, and whether there are more. */
async function entries(filter, limit, signal) {
  const answer = await ask(`/v1/ipcache${query({ ...filter, limit, meta: "none" })}`, signal);
  return { items: answer.items, next: answer.nextPageToken };
}

/** Returns the suggestions for a text: `[{kind, title, note, href}]`. */
export async function suggest(text, limit, signal) {
  switch (textKind(text)) {
    case "address": {
      const { match } = await ask(`/v1/ipcache/lookup${query({ ip: text, meta: "none" })}`, signal);
      const note = match ? suggestionOf.entry(match).note : "no entry; explain why";
      return [{ kind: "explain", title: text, note, href: hash("explain", [text]) }];
    }
    case "prefix": {
      const all = { kind: "prefix", title: text, note: "addresses inside it", href: hash("find", [text]) };
      return [all, ...(await entries({ cidr: text }, limit, signal)).items.map(suggestionOf.entry)];
    }
    case "number": {
      const { items } = await entries({ identity: text }, limit, signal);
      // requested only if it has addresses, because each typed digit makes another number
      const one = items.length > 0 ? await askMaybe(`/v1/identities/${text}`, signal) : null;
      const itself = one ? suggestionOf.identity(one) : { kind: "identity", title: text, note: "show its labels", href: hash("find", [text]) };
      return [itself, ...items.map(suggestionOf.entry)];
    }
    case "labels": {
      const [identities, services] = await Promise.all([
        firstPage("/v1/identities", { labelSelector: text, limit }, signal),
        firstPage("/v1/global-services", { labelSelector: text, limit, fields: "namespace,name" }, signal),
      ]);
      const all = { kind: "label", title: text, note: "identities and services with this label", href: hash("find", [text]) };
      return [all, ...identities.items.map(suggestionOf.identity), ...services.items.map((one) => suggestionOf.service(`${one.namespace}/${one.name}`))];
    }
    default:
      return byName(text, limit, signal);
  }
}

/**
 * Returns everything whose name contains the text. Pods only match by full name, because the page
 * has no list of them.
 */
async function byName(text, limit, signal) {
  const [namespace, pod] = text.includes("/") ? text.split("/", 2) : [undefined, text];
  const [known, pods] = await Promise.all([readNames(), pod ? entries({ namespace, pod }, limit, signal) : { items: [] }]);
  const matches = (name) => name.toLowerCase().includes(text.toLowerCase());
  let { services, nodes } = known;
  if (!known.isAll || ![...services, ...nodes, ...mirror.clusters.keys()].some(matches)) {
    const exact = await findExactly(text, limit, signal);
    services = mergeNames(exact.services, services);
    nodes = mergeNames(exact.nodes, nodes);
  }
  // names that start with the text come first
  const best = (all) => all.filter(matches).sort((one, other) => begins(other, text) - begins(one, text)).slice(0, limit);
  const clusters = best([...mirror.clusters.keys()]).map((name) => suggestionOf.cluster(mirror.clusters.get(name).object));
  const all = [...clusters.slice(0, 4), ...pods.items.map(suggestionOf.entry), ...best(services).map(suggestionOf.service), ...best(nodes).map(suggestionOf.node)].slice(0, limit * 2);
  // the part that was not searched may have a pod of this name
  return all.length === 0 && pods.next ? [{ kind: "search", title: text, note: "search all addresses", href: hash("find", [text]) }] : all;
}

function begins(name, text) {
  return name.startsWith(text) || name.split("/").pop().startsWith(text) ? 1 : 0;
}

/** Target of Enter without a selected suggestion. */
export function target(text) {
  return textKind(text) === "address" ? hash("explain", [text.toLowerCase()]) : hash("find", [text]);
}
