// Interprets the text in the search box and sends the matching requests. Each request has a limit.

import { ask, askMaybe, query } from "./api.js";
import { mirror } from "./mirror.js";
import { hash } from "./route.js";
import { clusterPhase } from "./state.js";
import { address, labels } from "./words.js";

const PREFIX = /^([0-9a-f:.]+)\/(\d{1,3})$/i;
/** An address that is not complete yet: hexadecimal digits with colons, or digits with dots. */
const PART_OF_ADDRESS = /^([0-9a-f]{0,4}:[0-9a-f:.]*|\d{1,3}\.[\d.]*)$/i;
/** Maximum number of identities among the suggestions for a word. */
const IDENTITIES_MAX = 4;

/** Returns the form of the text: `address`, `prefix`, `number`, `labels` or `word`. */
export function textKind(text) {
  if (address(text)) return "address";
  const prefix = PREFIX.exec(text);
  if (prefix && address(prefix[1])) return "prefix";
  if (/^\d{1,10}$/.test(text)) return "number";
  if (PART_OF_ADDRESS.test(text)) return "word";
  return /[=]|^[a-z][a-z0-9]*:\S+$|^!|\b(in|notin)\s*\(/i.test(text) ? "labels" : "word";
}

/**
 * Returns the first page with items, from the page of `filter.pageToken` on, or the last page. A
 * page can be empty although the list continues.
 */
export async function firstPage(path, filter, signal) {
  let { pageToken } = filter;
  for (;;) {
    const answer = await ask(`${path}${query({ ...filter, meta: "none", pageToken })}`, signal);
    if (answer.items.length > 0 || !answer.nextPageToken) return answer;
    pageToken = answer.nextPageToken;
  }
}

/** Returns the name of a service, with its namespace. */
export const nameOfService = (one) => `${one.namespace}/${one.name}`;
/** Returns the name of a node, with its cluster. */
export const nameOfNode = (one) => `${one.cluster}/${one.name}`;

export const suggestionOf = {
  cluster: (object) => ({ kind: "cluster", title: object.name, note: clusterPhase(object), href: hash("mesh", [object.name]) }),
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

/** Requests the addresses that match a filter, up to a maximum. */
const entries = (filter, limit, signal) => ask(`/v1/ipcache${query({ ...filter, limit, meta: "none" })}`, signal);

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

/** Returns everything whose name, label or address has the text. */
async function byName(text, limit, signal) {
  const search = (path, more) => firstPage(path, { search: text, limit, ...more }, signal);
  const [services, nodes, identities, pods] = await Promise.all([
    search("/v1/global-services", { fields: "namespace,name" }),
    search("/v1/nodes", { fields: "cluster,name" }),
    search("/v1/identities", { limit: IDENTITIES_MAX }),
    search("/v1/ipcache"),
  ]);
  const matches = (name) => name.toLowerCase().includes(text.toLowerCase());
  // names that start with the text come first
  const best = (names) => names.sort((one, other) => begins(other, text) - begins(one, text));
  const clusters = best([...mirror.clusters.keys()].filter(matches)).map((name) => suggestionOf.cluster(mirror.clusters.get(name).object));
  return [
    ...clusters.slice(0, 4),
    ...best(services.items.map(nameOfService)).map(suggestionOf.service),
    ...best(nodes.items.map(nameOfNode)).map(suggestionOf.node),
    ...identities.items.map(suggestionOf.identity),
    ...pods.items.map(suggestionOf.entry),
  ].slice(0, limit * 2);
}

function begins(name, text) {
  return name.startsWith(text) || name.split("/").pop().startsWith(text) ? 1 : 0;
}

/** Target of Enter without a selected suggestion. */
export function target(text) {
  return textKind(text) === "address" ? hash("explain", [text.toLowerCase()]) : hash("find", [text]);
}
