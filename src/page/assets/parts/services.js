// Services: the backends that a cluster would use, and why it does not use the others.

import { html } from "../html.js";
import { ask, follow, query } from "../api.js";
import { Copy } from "../copy.js";
import { firstPage } from "../search_query.js";
import { ageOf, atMostEvery, mirror, whenMoved } from "../mirror.js";
import { go, hash } from "../route.js";
import { clusterState } from "../state.js";
import { age, compareNames, number, phase, plural, spaced, tone } from "../words.js";

/** Minimum interval between reads of the list while the position moves, in ms. */
const LIST_EVERY_MS = 5_000;
/** Minimum interval between reads of one service while its events arrive, in ms. */
const ONE_EVERY_MS = 1_000;
/** Number of services per page of the list. */
const PAGE = 500;
/** Pause in typing after which meshkeep is queried, in ms. */
const PAUSE_MS = 150;
/** Maximum number of backends that are drawn per cluster. */
const BACKENDS_MAX = 100;
/** Maximum number of addresses in a batch lookup. */
const LOOKUP_MAX = 10_000;

/** Fields of the list. The backends would be most of the answer. */
const FIELDS = "namespace,name,clusters.cluster,clusters.backendCount,clusters.origin,clusters.stale,exports.type,conflicts.reason,tooLarge";

const AFFINITIES = ["none", "local", "remote"];

/** Returns the affinity in the URL, `none` if it has no valid one. */
function affinityOf(params) {
  const affinity = params.get("affinity");
  return AFFINITIES.includes(affinity) ? affinity : "none";
}

function key(one) {
  return `${one.namespace}/${one.name}`;
}

function Item({ one, isOpen }) {
  const backends = one.clusters.reduce((sum, cluster) => sum + cluster.backendCount, 0);
  const isStale = one.clusters.some((cluster) => !["live", "dump"].includes(cluster.origin) || cluster.stale);
  return html`<li><a data-row class="item ${isOpen ? "open" : ""}" href=${hash("services", [one.namespace, one.name])} aria-current=${isOpen ? "true" : undefined}>
    <span class="item-name"><span class="quiet">${one.namespace}/</span>${one.name}</span>
    <span class="item-tags">${isStale && html`<span class="mark" title="not confirmed, or held">◌</span>`}
      ${one.exports && html`<span class="tag" title="exported by MCS">mcs</span>`}${one.conflicts?.length > 0 && html`<span class="tag warn">conflict</span>`}</span>
    ${one.tooLarge
      ? html`<span class="item-count red">too large to show</span>`
      : html`<span class="item-count ${backends === 0 ? "amber" : ""}">${plural(one.clusters.length, "cluster")} · ${plural(backends, "backend")}</span>`}
  </a></li>`;
}

const REASONS = {
  terminating: "is terminating, gets no new connections while other backends exist",
  terminatingNotServing: "is terminating and no longer serves",
  maintenance: "is not ready",
};

/** Returns the reason why a cluster's backends are not used, or an empty text if they are. */
function whyNot(cluster, selection) {
  if (!selection) return "";
  const isOwn = cluster === selection.from;
  if (isOwn ? selection.local : selection.remote) return "";
  if (!isOwn && selection.rule === "notGlobal") return `not used: the service of ${selection.from} does not use backends of other clusters`;
  return isOwn ? "not used: affinity remote prefers backends of other clusters" : `not used: affinity local prefers backends of ${selection.from}`;
}

function Backend({ backend, pod, isUsed, selection }) {
  return html`<li class="backend ${selection ? (isUsed ? "used" : "unused") : ""} ${backend.state}">
    <svg class="spot" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true"><circle cx="6" cy="6" r="4.5" /></svg>
    <div><a class="mono" href=${hash("explain", [backend.ip])}>${backend.ip}</a><${Copy} text=${backend.ip} />
      ${pod && html`<span class="pod">${pod}</span>`}
      <span class="where">${[backend.hostname, backend.zone, backend.nodeName].filter(Boolean).join(" · ")}</span>
      <span class="ports">${backend.ports.map((port) => `${port.name ? `${port.name} ` : ""}${port.port}/${port.protocol}`).join(", ")}</span>
      ${backend.state !== "active" && html`<span class="why">${REASONS[backend.state] ?? backend.state}</span>`}</div>
  </li>`;
}

function Column({ cluster, backends, pods, used, selection }) {
  // the current age, because the answer only has the age at its request
  const known = mirror.clusters.get(cluster.cluster);
  const currentAge = known ? ageOf(known) : cluster.ageSeconds;
  const inPhase = known?.object.phase ?? cluster.phase ?? "live";
  const isLive = cluster.origin === "live" && inPhase === "live" && !cluster.stale;
  const shown = backends.slice(0, BACKENDS_MAX);
  const why = backends.length > 0 ? whyNot(cluster.cluster, selection) : "";
  return html`<section class="column ${selection?.from === cluster.cluster ? "own" : ""}">
    <h3><a class="chip" href=${hash("mesh", [cluster.cluster])}>${cluster.cluster}</a>
      <span class="is-${known ? clusterState(known) : tone(currentAge)} tone">${isLive ? "live" : cluster.stale ? "held" : cluster.origin === "live" ? phase(inPhase) : cluster.origin}, ${age(currentAge)}</span></h3>
    <p class="quiet">${cluster.source === "endpointSlice" ? "by endpoint slices" : `${cluster.includeExternal === false ? "does not use backends of other clusters" : "uses backends of other clusters too"}`}${
      cluster.frontends?.length ? `, at ${cluster.frontends.map((one) => one.ip).join(", ")}` : ""
    }</p>
    ${backends.length === 0 && html`<p class="none">no backend</p>`}
    ${why && html`<p class="all">${why}</p>`}
    <ul class="backends">${shown.map((one) => html`<${Backend} key=${one.ip} backend=${one} pod=${pods.get(`${one.cluster} ${one.ip}`)} isUsed=${used?.has(`${one.cluster} ${one.ip}`)} selection=${selection} />`)}</ul>
    ${backends.length > shown.length && html`<p class="quiet">and ${number(backends.length - shown.length)} more</p>`}
  </section>`;
}

function Choice({ route, service, chosen, from, affinity }) {
  const names = [...new Set([...service.clusters.map((one) => one.cluster), ...mirror.clusters.keys(), mirror.home])].filter(Boolean).sort(compareNames);
  const to = (change) => go(hash("services", route.path, { from, affinity, ...change }), true);
  return html`<div class="choice">
    <label>as seen from <select value=${from} onChange=${(event) => to({ from: event.target.value })}>
      <option value="">no cluster</option>${names.map((name) => html`<option key=${name} value=${name} selected=${name === from}>${name}</option>`)}</select></label>
    <fieldset disabled=${!from}><legend class="unseen">affinity</legend><span>with affinity</span>
      ${AFFINITIES.map((one) => html`<label key=${one} class="pill"><input type="radio" name="affinity" value=${one} checked=${affinity === one} onChange=${() => to({ affinity: one })} />${one}</label>`)}</fieldset>
    ${chosen?.selection && html`<p class="verdict">${plural(chosen.backends.length, "backend")} would be used: ${chosen.reason}${chosen.selection?.localKnown === false ? " (the services of that cluster are not mirrored)" : ""}</p>`}
  </div>`;
}

function Exports({ service }) {
  const { exports, conflicts = [] } = service;
  if (!exports) return null;
  return html`<section class="card"><h2>exported (MCS)</h2>
    <p>${exports.type}, by ${exports.clusters.join(", ")}; ports ${exports.ports.map((port) => `${port.name ? `${port.name} ` : ""}${port.port}/${port.protocol}`).join(", ") || "none"}.</p>
    ${conflicts.length === 0 && html`<p class="quiet">The exports agree.</p>`}
    <ul class="plain">${conflicts.map((one) => html`<li key=${one.reason + one.clusters}><span class="severity warning">${spaced(one.reason)}</span> ${one.clusters.join(", ")}: ${one.message}</li>`)}</ul>
  </section>`;
}

function One({ route, service, pods, chosen, from, affinity }) {
  const selection = chosen?.selection;
  const used = chosen && new Set(chosen.backends.map((one) => `${one.cluster} ${one.ip}`));
  return html`<article class="service">
    <h2><span class="quiet">${service.namespace}/</span>${service.name}</h2>
    ${service.tooLarge && html`<p class="red">Its clusters and backends are not shown: ${service.tooLarge.reason}. The first key is <span class="mono">${service.tooLarge.key}</span>.</p>`}
    <${Choice} route=${route} service=${service} chosen=${chosen} from=${from} affinity=${affinity} />
    <div class="columns">${service.clusters.map((cluster) => html`<${Column} key=${cluster.cluster} cluster=${cluster} pods=${pods} used=${used} selection=${selection}
      backends=${service.backends.filter((one) => one.cluster === cluster.cluster)} />`)}</div>
    <${Exports} service=${service} />
  </article>`;
}

/** Returns the pods of backends by `cluster ip`: `namespace/pod`. */
async function podsOf(backends, signal) {
  const countByCluster = new Map();
  const drawn = backends.filter(({ cluster }) => {
    const count = (countByCluster.get(cluster) ?? 0) + 1;
    countByCluster.set(cluster, count);
    return count <= BACKENDS_MAX;
  });
  const ips = [...new Set(drawn.map((one) => one.ip))].slice(0, LOOKUP_MAX);
  if (ips.length === 0) return new Map();
  const { items } = await ask("/v1/ipcache/lookup?meta=none", signal, { ips });
  return new Map(items.filter((one) => one.match?.podName).map(({ ip, match }) => [`${match.cluster} ${ip}`, `${match.namespace}/${match.podName}`]));
}

class Open {
  constructor(route, draw) {
    this.route = route;
    this.draw = draw;
    this.stop = new AbortController();
    this.service = undefined;
    /** Pods by `cluster ip`. */
    this.pods = new Map();
    this.read = atMostEvery(ONE_EVERY_MS, () => this.readNow());
    const [namespace, name] = route.path;
    this.stream = follow(
      { kind: ["service", "serviceExport"], namespace, name, patch: true },
      { link() {}, event: (event) => ["upsert", "patch", "delete", "reset"].includes(event.type) && this.read() },
    );
    // endpoint slices are not in this stream, but they move the position
    this.end = whenMoved(() => this.read());
    this.read();
  }

  get from() {
    return this.route.params.get("from") ?? "";
  }

  get affinity() {
    return affinityOf(this.route.params);
  }

  async readNow() {
    const [namespace, name] = this.route.path;
    // as a list, because a missing service is then an empty list and not an error
    const one = async (more) => (await firstPage("/v1/global-services", { namespace, name, limit: 1, ...more }, this.stop.signal)).items[0] ?? null;
    const { from, affinity } = this;
    try {
      const [service, chosen] = await Promise.all([one({}), from ? one({ affinity, from }) : null]);
      service?.backends.sort((one, other) => compareNames(one.ip, other.ip));
      Object.assign(this, { service, chosen, trouble: null });
      this.draw();
      // backends have no pod names, but the entries of their addresses do
      if (service) this.pods = await podsOf(service.backends, this.stop.signal);
    } catch (error) {
      if (this.stop.signal.aborted) return;
      this.trouble = error;
    }
    this.draw();
  }

  view() {
    const { service, pods, chosen, route, from, affinity, trouble } = this;
    if (service) return html`<${One} route=${route} service=${service} pods=${pods} chosen=${from ? chosen : null} from=${from} affinity=${affinity} />`;
    if (trouble) return html`<p class="sentence red">${trouble.message}</p>`;
    if (service === undefined) return html`<p class="sentence quiet">Searching …</p>`;
    return html`<div class="sentence"><h2>${route.path.join("/")}</h2><p>No cluster shares or exports a service of this name.</p></div>`;
  }

  close() {
    this.stop.abort();
    this.stream.close();
    this.end();
  }
}

export const services = {
  title: (route) => (route.path.length === 2 ? `${route.path.join("/")}, services` : "Services"),
  commands({ path, params }) {
    if (path.length !== 2) return { path: "/v1/global-services", words: ["get", "global-services"] };
    const from = params.get("from");
    const selection = from ? { from, affinity: affinityOf(params) } : {};
    const options = Object.entries(selection).map(([option, value]) => `--${option}=${value}`);
    return {
      path: `/v1/global-services/${path.map(encodeURIComponent).join("/")}${query(selection)}`,
      words: ["get", "global-services", path.join("/"), ...options],
    };
  },

  open(route, draw) {
    let items = null;
    let pages = 1;
    let hasMore = false;
    let words = "";
    /** Text that the items contain, and the error of the last query. */
    let searched = "";
    let trouble = null;
    let timer = 0;
    let open = route.path.length === 2 ? new Open(route, draw) : null;
    const stop = new AbortController();

    const load = async () => {
      const [wanted, found] = [words, []];
      let pageToken;
      for (let page = 0; page < pages; page += 1) {
        const answer = await firstPage("/v1/global-services", { fields: FIELDS, limit: PAGE, search: wanted, pageToken }, stop.signal);
        found.push(...answer.items);
        pageToken = answer.nextPageToken;
        if (!pageToken) break;
      }
      if (wanted !== words) return;
      found.sort((one, other) => compareNames(key(one), key(other)));
      [items, hasMore, searched, trouble] = [found, pageToken !== undefined, wanted, null];
      draw();
    };
    const read = atMostEvery(LIST_EVERY_MS, load);
    read();
    const end = whenMoved(read);

    /** Queries the services that contain the text of the filter. */
    const filter = (text) => {
      [words, pages] = [text, 1];
      clearTimeout(timer);
      timer = setTimeout(() => {
        load().catch((error) => {
          if (stop.signal.aborted || text !== words) return;
          trouble = error;
          draw();
        });
      }, PAUSE_MS);
    };

    /** Returns why the list has no services, if a filter is set. */
    const reason = () => {
      if (!words) return null;
      if (trouble) return html`<p class="red">${trouble.message}</p>`;
      if (searched !== words) return html`<p class="quiet">Searching …</p>`;
      return items?.length === 0 && html`<p class="quiet">no shared service has this text in its name</p>`;
    };

    return {
      view() {
        return html`<h1 class="unseen">Services</h1><div class="panes ${open ? "has-one" : ""}">
          <aside class="list" aria-label="services">
            <input type="search" class="filter" placeholder="filter by name" aria-label="filter by name" value=${words} onInput=${(event) => (filter(event.target.value.trim()), draw())} />
            ${items === null && html`<p class="quiet">Reading …</p>`}
            ${items?.length === 0 && !words && !searched && html`<p class="sentence">No cluster shares a service. Clusters share services with the annotation <code>service.cilium.io/global</code>, or export them with a ServiceExport.</p>`}
            <ul class="items">${(items ?? []).map((one) => html`<${Item} key=${key(one)} one=${one} isOpen=${open?.route.path.join("/") === key(one)} />`)}</ul>
            ${reason()}
            ${hasMore && html`<button type="button" onClick=${() => ((pages += 1), read())}>more than ${number(items.length)}: load more</button>`}
          </aside>
          <div class="pane">${open ? html`<p class="back"><a href=${hash("services")}>‹ all services</a></p>${open.view()}` : items?.length > 0 && html`<p class="sentence quiet">Choose a service to see its backends by cluster, and which backends each affinity would use.</p>`}</div>
        </div>`;
      },
      moved(next) {
        const isSame = open && next.path.join("/") === open.route.path.join("/");
        route = next;
        if (isSame) {
          open.route = next;
          open.readNow();
        } else {
          open?.close();
          open = next.path.length === 2 ? new Open(next, draw) : null;
        }
        return true;
      },
      close() {
        clearTimeout(timer);
        stop.abort();
        open?.close();
        end();
      },
    };
  },
};
