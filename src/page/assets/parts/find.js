// Results of a search: an identity with its addresses, the addresses inside a prefix, objects with
// a label, a node, or a pod.

import { html } from "../html.js";
import { ask, askMaybe, query } from "../api.js";
import { Copy } from "../copy.js";
import { firstPage, nameOfNode, nameOfService, textKind } from "../search_query.js";
import { mirror, whenMoved } from "../mirror.js";
import { hash } from "../route.js";
import { clusterPhase } from "../state.js";
import { labels, number } from "../words.js";

/** Number of addresses per page. */
const PAGE = 100;
/** Maximum number of identities among the results for a word. */
const IDENTITIES_MAX = 20;

function Addresses({ list, title }) {
  if (!list) return null;
  return html`<section class="card wide"><h2>${title ?? "addresses"}</h2>
    ${list.items.length === 0 && html`<p class="quiet">${list.next ? "none in the part that was searched" : "none"}</p>`}
    ${list.items.length > 0 && html`<div class="scroll"><table class="plain-table"><thead><tr><th scope="col">prefix</th><th scope="col">cluster</th><th scope="col">identity</th><th scope="col">pod</th><th scope="col">host</th></tr></thead>
      <tbody>${list.items.map((one) => html`<tr key=${`${one.cluster}${one.prefix}${one.host}${one.source}`}>
        <td><a data-row class="mono" href=${hash("explain", [one.prefix.split("/")[0]])}>${one.prefix}</a><${Copy} text=${one.prefix.replace(/\/(32|128)$/, "")} /></td><td>${one.cluster}</td><td><a href=${hash("find", [String(one.identity)])}>${one.identity}</a><${Copy} text=${String(one.identity)} name=${`copy identity ${one.identity}`} /></td>
        <td>${one.podName ? `${one.namespace}/${one.podName}` : html`<span class="quiet">${one.source === "node" ? (one.nodeName ?? "node") : ""}</span>`}</td><td class="mono">${one.hostIP ?? ""}</td></tr>`)}</tbody></table></div>`}
    ${list.trouble && html`<p class="red">${list.trouble.message}</p>`}
    ${list.next && html`<button type="button" onClick=${list.more}>more</button>`}
  </section>`;
}

function Identity({ one }) {
  return html`<section class="card"><h2>identity ${one.id}<${Copy} text=${String(one.id)} name=${`copy identity ${one.id}`} /></h2>
    <p>${one.reserved ? html`reserved: <b>${one.reserved}</b>` : html`of <a class="chip" href=${hash("mesh", [one.cluster])}>${one.cluster}</a>`} <span class="quiet">${one.scope}</span></p>
    <ul class="labels">${labels(one.labels).map((text) => html`<li key=${text}><a href=${hash("find", [text])}>${text}</a></li>`)}</ul></section>`;
}

function Node({ node }) {
  const facts = [
    ["addresses", node.addresses.map((one) => html`<div key=${one.ip}>${one.ip}<${Copy} text=${one.ip} /> <span class="quiet">${one.type}</span></div>`)],
    ["pod ranges", [node.ipv4PodCIDR, node.ipv6PodCIDR, ...(node.secondaryPodCIDRs ?? [])].filter(Boolean).map((one) => html`<div key=${one}>${one}</div>`)],
    ["health", node.healthIPs?.join(", ")],
    ["ingress", node.ingressIPs?.join(", ")],
    ["encryption", [node.encryptionKey && `IPsec key ${node.encryptionKey}`, node.wireguardPublicKey && "WireGuard"].filter(Boolean).join(", ")],
    ["boot id", node.bootID],
  ].filter(([, value]) => value?.length > 0);
  return html`<section class="card"><h2>node ${node.name}</h2><p>in <a class="chip" href=${hash("mesh", [node.cluster])}>${node.cluster}</a></p>
    <dl class="facts-list">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <ul class="labels">${labels(node.labels).map((text) => html`<li key=${text}>${text}</li>`)}</ul></section>`;
}

function Links({ title, items }) {
  if (!items?.length) return null;
  return html`<section class="card"><h2>${title}</h2><ul class="plain">${items.map(([text, href, note]) => html`<li key=${href}><a data-row href=${href}>${text}</a> <span class="quiet">${note}</span></li>`)}</ul></section>`;
}

/** Reads the addresses that match a filter, page by page. */
async function pages(filter, signal, draw) {
  const list = { items: [], next: undefined };
  const read = async (pageToken) => {
    const answer = await ask(`/v1/ipcache${query({ ...filter, limit: PAGE, meta: "none", pageToken })}`, signal);
    // the first page replaces the old list
    if (pageToken === undefined) list.items = [];
    list.items.push(...answer.items);
    list.next = answer.nextPageToken;
    list.trouble = null;
    draw();
  };
  list.more = async () => {
    try {
      // a page token from before a restart is invalid: start again from the first page
      await read(list.next).catch((error) => (error.status === 400 ? read() : Promise.reject(error)));
    } catch (error) {
      if (signal.aborted) return;
      list.trouble = error;
      draw();
    }
  };
  await read();
  return list;
}

async function search(text, signal, draw) {
  switch (textKind(text)) {
    case "prefix":
      return { list: await pages({ cidr: text }, signal, draw), title: `inside ${text}`, empty: "No address of this mesh is inside it." };
    case "number": {
      const [identity, list] = await Promise.all([askMaybe(`/v1/identities/${text}`, signal), pages({ identity: text }, signal, draw)]);
      return { identities: identity ? [identity, ...(identity.others ?? [])] : [], list, title: `addresses of identity ${text}`, none: identity ? "" : `No cluster announces identity ${text}.`, empty: "No address has it." };
    }
    case "labels": {
      const [identities, services] = await Promise.all([
        firstPage("/v1/identities", { labelSelector: text, limit: PAGE }, signal),
        firstPage("/v1/global-services", { labelSelector: text, limit: PAGE, fields: "namespace,name" }, signal),
      ]);
      const links = services.items.map((one) => [`${one.namespace}/${one.name}`, hash("services", [one.namespace, one.name]), ""]);
      return { identities: identities.items, more: identities.nextPageToken, services: links, empty: "No identity and no shared service has these labels." };
    }
    default:
      return byName(text, signal, draw);
  }
}

async function byName(text, signal, draw) {
  const [before, after] = text.includes("/") ? text.split("/", 2) : [undefined, text];
  const matches = (name) => name.toLowerCase().includes(text.toLowerCase());
  const troubles = [];
  // errors are shown next to the results
  const or = (nothing) => (error) => {
    if (signal.aborted) throw error;
    troubles.push(error.message);
    return nothing;
  };
  const search = (path, more) => firstPage(path, { search: text, limit: PAGE, ...more }, signal).catch(or({ items: [] }));
  const [services, nodes, identities, node, list] = await Promise.all([
    search("/v1/global-services", { fields: "namespace,name" }),
    search("/v1/nodes", { fields: "cluster,name" }),
    search("/v1/identities", { limit: IDENTITIES_MAX }),
    before && mirror.clusters.has(before) ? firstPage("/v1/nodes", { cluster: before, name: after, limit: 1 }, signal).then((answer) => answer.items[0], or(null)) : null,
    pages({ search: text }, signal, draw).catch(or(null)),
  ]);
  const hosted = node ? await pages({ node: node.name, cluster: node.cluster }, signal, draw).catch(or(null)) : null;
  return {
    node,
    list: hosted ?? list,
    title: hosted ? `addresses that ${node.name} hosts` : `addresses and pods with ${text}`,
    nodes: node ? [] : nodes.items.map(nameOfNode).map((name) => [name, hash("find", [name]), ""]),
    services: services.items.map(nameOfService).map((name) => [name, hash("services", name.split("/")), ""]),
    clusters: [...mirror.clusters.values()].filter(({ object }) => matches(object.name)).map(({ object }) => [object.name, hash("mesh", [object.name]), clusterPhase(object)]),
    identities: identities.items,
    more: identities.nextPageToken,
    troubles: [...new Set(troubles)],
    empty: "No pod, shared service, node, cluster, label or address of this mesh has this text.",
  };
}

export const find = {
  title: (route) => route.path.join("/") || "Search",
  commands({ path }) {
    const text = path.join("/");
    const [before, after] = text.includes("/") ? text.split("/", 2) : [undefined, text];
    const isNode = mirror.clusters.has(before);
    const asked = {
      prefix: ["ipcache", { cidr: text }],
      number: ["ipcache", { identity: text }],
      labels: ["identities", { labelSelector: text }],
      word: isNode ? ["ipcache", { cluster: before, node: after }] : ["ipcache", { search: text }],
    }[text && textKind(text)];
    if (!asked) return null;
    const [kind, filter] = asked;
    if (filter.search) return { path: `/v1/${kind}${query(filter)}`, words: ["find", text] };
    const words = Object.entries(filter).flatMap(([name, value]) => (name === "labelSelector" ? [`--selector=${value}`] : value ? [`--filter=${name}=${value}`] : []));
    return { path: `/v1/${kind}${query(filter)}`, words: ["get", kind, ...words] };
  },

  open(route, draw) {
    const text = route.path.join("/");
    const stop = new AbortController();
    let found = null;
    let trouble = null;
    const begin = () =>
      search(text, stop.signal, draw)
        .then((answer) => ([found, trouble] = [answer, null]))
        .catch((error) => (trouble = stop.signal.aborted ? null : error))
        .finally(draw);
    if (text) begin();
    // repeats a refused request after a sign-in
    const stopListening = whenMoved(() => trouble?.status === 401 && begin());
    return {
      view() {
        if (!text) return html`<div class="sentence"><h1>What is it?</h1><p>Type an address, prefix, identity, label, pod, node or service into the search box (<kbd>/</kbd>).</p></div>`;
        if (trouble) return html`<div class="sentence"><h1>${text}</h1><p class="red">${trouble.message}</p></div>`;
        if (!found) return html`<p class="sentence quiet">Searching …</p>`;
        const { identities = [], node, list, nodes, services, clusters, title, none, more, troubles = [], empty } = found;
        const isEmpty = !identities.length && !node && !list?.items.length && !list?.next && !nodes?.length && !services?.length && !clusters?.length;
        return html`<article class="find"><h1>${text}</h1>
          ${none && html`<p>${none}</p>`}
          ${troubles.map((trouble) => html`<p key=${trouble} class="red">${trouble}</p>`)}
          ${isEmpty && troubles.length === 0 && html`<p class="sentence">${empty}</p>`}
          <div class="cards">
            ${node && html`<${Node} node=${node} />`}
            ${identities.map((one) => html`<${Identity} key=${`${one.id}${one.cluster}`} one=${one} />`)}
            <${Links} title="clusters" items=${clusters} /><${Links} title="services" items=${services} /><${Links} title="nodes" items=${nodes} />
            ${(list?.items.length > 0 || list?.next) && html`<${Addresses} list=${list} title=${title} />`}
          </div>
          ${more && html`<p class="quiet">The first ${number(identities.length)} identities are shown.</p>`}
        </article>`;
      },
      close() {
        stop.abort();
        stopListening();
      },
    };
  },
};
