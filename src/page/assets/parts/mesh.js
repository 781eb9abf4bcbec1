// Mesh: one row per cluster, worst first. The colour of a row is the state of its cluster.

import { Component, html } from "../html.js";
import { follow, query } from "../api.js";
import { ageOf, mirror, readClusters } from "../mirror.js";
import { go, hash } from "../route.js";
import { clusterPhase, clusterState, isFromDump } from "../state.js";
import { Empty, NoClusters } from "./empty.js";
import { Impact } from "./impact.js";
import { COLUMNS, Filters, Folded, Head, KINDS, Strip, ageText, selectRows } from "./mesh_list.js";
import { age, daysUntil, number, plural, since } from "../words.js";

/** Days until expiry from which a certificate is marked. */
const CERTIFICATE_DAYS = { red: 7, amber: 30 };

/** Number of seconds in the chart of an opened row. */
const CHART_S = 120;

function Resource({ object, kind }) {
  const resource = object.resources.find((one) => one.kind === kind);
  if (!resource || resource.origin === "neverRead") {
    return html`<td class="count none">${resource && object.phase === "listing" ? html`<${Bar} resource=${resource} />` : "—"}</td>`;
  }
  if (object.phase === "listing" && !resource.synced && resource.expected > resource.entries) {
    return html`<td class="count"><${Bar} resource=${resource} /></td>`;
  }
  const isRestored = resource.origin !== "dump" && (resource.restored > 0 || resource.origin === "restored");
  const marks = [
    isRestored && html`<span class="mark" title=${`${plural(resource.restored, "entry", "entries")} restored, not confirmed`}>◌</span>`,
    resource.held > 0 && html`<span class="mark" title=${`${plural(resource.held, "entry", "entries")} held: its source lost them`}>◍</span>`,
  ];
  return html`<td class="count ${isRestored ? "restored" : ""} ${resource.entries === 0 ? "zero" : ""}">${number(resource.entries)}${marks}</td>`;
}

function Bar({ resource }) {
  const { entries, expected } = resource;
  if (!expected) return entries ? number(entries) : "—";
  const words = `${number(entries)} of ${number(expected)}`;
  return html`<progress max=${expected} value=${entries} aria-label=${words} title=${words}></progress>`;
}

function Certificate({ expiry }) {
  if (expiry === undefined) return html`<td class="cert none">—</td>`;
  const days = daysUntil(expiry);
  const own = days <= CERTIFICATE_DAYS.red ? "red" : days <= CERTIFICATE_DAYS.amber ? "amber" : "";
  return html`<td class="cert ${own}" title=${`until ${expiry}`}>${own && html`<span class="mark">▲ </span>`}${days < 0 ? "ended" : `${number(days)} d`}</td>`;
}

function note(object) {
  const retry = object.nextRetrySeconds > 0 ? `, next attempt in ${age(object.nextRetrySeconds)}` : "";
  if (object.phase === "live") return object.origin === "live" ? "" : "not completely confirmed yet";
  return object.lastError ? `${object.lastError}${retry}` : "";
}

/**
 * One row. It is drawn only if it changed, because there may be 511 rows and ages change every
 * second.
 */
class Row extends Component {
  shouldComponentUpdate(next) {
    return next.object !== this.props.object || next.state !== this.props.state || next.address !== this.props.address || next.seconds !== this.props.seconds || next.isOpen !== this.props.isOpen || next.time !== this.props.time;
  }

  render({ object, state, address, seconds, isOpen, time }) {
    const isLive = object.phase === "live";
    return html`<tr class="is-${state} ${isOpen ? "open" : ""}" data-cluster=${object.name}>
      <th scope="row"><a data-row href=${address} aria-expanded=${isOpen}>${object.name}</a>${object.local && html` <span class="tag">local</span>`}</th>
      <td class="phase"><span class="dot" aria-hidden="true"></span>${state === "gone" && !isFromDump(object) ? "was " : ""}${clusterPhase(object)}
        ${!isLive && time && html` <span class="quiet">${time}</span>`}</td>
      <td class="age tone">${ageText(object, seconds === "" ? undefined : Number(seconds))}</td>
      ${KINDS.map(([kind]) => html`<${Resource} key=${kind} object=${object} kind=${kind} />`)}
      <${Certificate} expiry=${object.certificateExpiry} />
      <td class="note" title=${note(object)}>${note(object)}</td>
    </tr>`;
  }
}

/** Rounds an age as it is shown, so that equal texts are equal: tenths below ten seconds. */
function rounded(seconds) {
  if (seconds === undefined) return "";
  return seconds < 9.95 ? seconds.toFixed(1) : String(Math.round(seconds));
}

function Totals() {
  const counts = mirror.status?.counts;
  if (!counts) return null;
  const parts = [
    [counts.nodes, "nodes"],
    [counts.services, "services"],
    [counts.identities, "identities"],
    [counts.ipcache, "addresses"],
  ];
  return html`<dl class="totals">${parts.map(([count, name]) => html`<div key=${name}><dt>${name}</dt><dd>${number(count)}</dd></div>`)}
    ${counts.rejected > 0 && html`<div><dt>rejected</dt><dd class="amber">${number(counts.rejected)}</dd></div>`}</dl>`;
}

/** Chart of the changes per second of the opened cluster. */
class RateChart {
  constructor(cluster, draw) {
    this.counts = new Map();
    this.since = Date.now();
    this.stream = follow(
      { cluster, kind: ["node", "service", "identity", "ipcache", "serviceExport", "endpointSlice"], patch: true },
      {
        link() {},
        event: (event) => {
          if (!["upsert", "patch", "delete"].includes(event.type)) return;
          const second = Math.floor(Date.now() / 1000);
          this.counts.set(second, (this.counts.get(second) ?? 0) + 1);
          this.counts.delete(second - CHART_S - 1);
          draw();
        },
      },
    );
  }

  view() {
    const now = Math.floor(Date.now() / 1000);
    const values = Array.from({ length: CHART_S }, (_, index) => this.counts.get(now - CHART_S + 1 + index) ?? 0);
    const top = Math.max(4, ...values);
    const total = values.reduce((sum, value) => sum + value, 0);
    const bars = values.map((value, index) => (value ? `M${index * 3 + 1.5} 32v${-Math.max(1.5, (value / top) * 30)}` : "")).join("");
    const seconds = Math.min(CHART_S, Math.max(1, Math.round((Date.now() - this.since) / 1000)));
    return html`<figure class="beat">
      <svg viewBox="0 0 ${CHART_S * 3} 32" preserveAspectRatio="none" role="img" aria-label=${`${plural(total, "change")} in ${seconds} s`}>
        <path class="ground" d="M0 31.5H${CHART_S * 3}" /><path d=${bars} />
      </svg>
      <figcaption>${plural(total, "change")} in the last ${seconds} s · <a href=${hash("changes", [], { cluster: this.cluster })}>show them</a></figcaption>
    </figure>`;
  }

  close() {
    this.stream.close();
  }
}

function Detail({ object, chart, impact, params }) {
  const facts = [
    ["endpoint", object.endpoint],
    ["cluster id", object.clusterID],
    ["etcd cluster", object.etcdClusterID],
    ["in this phase", object.phaseSeconds === undefined ? undefined : age(object.phaseSeconds)],
    ["last contact", object.lastContact && `${age(since(object.lastContact))} ago`],
    ["last heartbeat", object.lastHeartbeat && `${age(since(object.lastHeartbeat))} ago`],
    ["failed attempts", object.failures || undefined],
    ["last error", object.lastError && `${object.lastError}${object.lastErrorTime ? ` (${age(since(object.lastErrorTime))} ago)` : ""}`],
    ["certificate expires", object.certificateExpiry],
    ["source", object.config && (object.config.cached ? "the copy of a KVStoreMesh: the age of the original is unknown" : "the cluster's own etcd")],
    ["canaries", object.config && (object.config.syncedCanaries ? "announced" : "none: a list is complete when it ends")],
    ["unknown prefixes", object.unknownPrefixes?.length ? object.unknownPrefixes.join(", ") : undefined],
  ].filter(([, value]) => value !== undefined && value !== "");
  return html`<div class="detail">
    <dl class="facts-list">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <table class="inner"><caption class="unseen">entries of ${object.name}</caption>
      <thead><tr><th scope="col">kind</th><th scope="col" class="count">entries</th><th scope="col" class="count">expected</th><th scope="col">state</th><th scope="col">last change</th><th scope="col" class="count">revision</th><th scope="col">verified</th></tr></thead>
      <tbody>${object.resources.map((one) => html`<tr key=${one.kind}>
        <th scope="row">${KINDS.find(([kind]) => kind === one.kind)?.[1] ?? one.kind}</th>
        <td class="count">${number(one.entries)}</td><td class="count">${one.expected === undefined ? "" : number(one.expected)}</td>
        <td>${state(one)}</td><td>${one.lastEvent ? `${age(since(one.lastEvent))} ago` : ""}</td><td class="count">${one.revision ?? ""}</td>
        <td title="time since all keys were last equal to the source's">${one.verifiedAt ? `${age(since(one.verifiedAt))} ago, ${plural(one.keysCompared, "key", "keys")}` : ""}</td></tr>`)}</tbody>
    </table>
    ${chart?.view()}
    <p class="links"><a href=${hash("problems", [], { cluster: object.name })}>problems of ${object.name}</a> · <a href=${hash("changes", [], { cluster: object.name })}>changes</a> · <a href=${hash("mesh", [object.name], { ...params, impact: impact ? "" : "yes" })} aria-expanded=${Boolean(impact)}>impact if it leaves the mesh</a></p>
    ${impact?.view()}
  </div>`;
}

function state(resource) {
  if (resource.origin === "neverRead") return "never read";
  if (resource.origin === "dump") return "from a dump";
  const parts = [resource.synced ? "complete and watched" : "not complete"];
  if (resource.restored > 0) parts.push(`${number(resource.restored)} restored, not confirmed`);
  if (resource.held > 0) parts.push(`${number(resource.held)} held`);
  return parts.join(", ");
}

export const mesh = {
  title: (route) => (route.path[0] ? `${route.path[0]}, mesh` : "Mesh"),
  commands: ({ path, params }) => (path[0] && params.get("impact") ? { path: `/v1/impact${query({ cluster: path[0] })}`, words: ["impact", path[0]] } : path[0] ? { path: `/v1/clusters/${encodeURIComponent(path[0])}`, words: ["get", "clusters", path[0]] } : { path: "/v1/clusters", words: ["status"] }),

  open(route, draw) {
    let opened = route.path[0];
    let chart = null;
    let isShown = false;
    const show = (row) => {
      if (!row || isShown) return;
      isShown = true;
      row.scrollIntoView({ block: "center" });
    };
    const openChart = () => {
      chart?.close();
      chart = opened ? new RateChart(opened, draw) : null;
      if (chart) chart.cluster = opened;
    };
    let impact = null;
    const openImpact = () => {
      const cluster = route.params.get("impact") ? opened : undefined;
      if (impact?.cluster === cluster) return;
      impact?.close();
      impact = cluster ? new Impact(cluster, draw) : null;
    };
    openChart();
    openImpact();
    readClusters();

    return {
      view() {
        if (mirror.clusters.size === 0) return html`<h1 class="unseen">Mesh</h1><${Empty} />`;
        const { rows, folded, canFold } = selectRows(route.params, opened);
        const params = Object.fromEntries(route.params);
        return html`<h1 class="unseen">Mesh</h1><${NoClusters} />
          <div class="over"><${Strip} route=${route} /><${Totals} /></div>
          ${mirror.clusters.size > 1 && html`<${Filters} route=${route} canFold=${canFold} />`}
          <table class="mesh">
            <caption class="unseen">clusters, those that need attention first</caption>
            <${Head} route=${route} />
            <tbody>${rows.map((known) => {
              const { object, at } = known;
              const isOpen = object.name === opened;
              const time = object.phaseSeconds === undefined ? "" : age(object.phaseSeconds + (Date.now() - at) / 1000);
              const address = hash("mesh", isOpen ? [] : [object.name], params);
              const row = html`<${Row} key=${object.name} object=${object} state=${clusterState(known)} address=${address} seconds=${rounded(ageOf(known))} time=${time} isOpen=${isOpen} />`;
              return isOpen ? [row, html`<tr key="detail" class="detail-row" ref=${show}><td colspan=${COLUMNS.length}><${Detail} object=${object} chart=${chart} impact=${impact} params=${params} /></td></tr>`] : row;
            })}
            ${folded.length > 0 && html`<${Folded} key="folded" route=${route} folded=${folded} />`}</tbody>
          </table>
          ${rows.length + folded.length === 0 && html`<p class="sentence quiet">None of ${plural(mirror.clusters.size, "cluster")} matches.</p>`}
          ${opened && !mirror.clusters.has(opened) && mirror.isRead && html`<p class="sentence">There is no cluster <b>${opened}</b> in this mesh.</p>`}`;
      },
      moved(next) {
        route = next;
        if (opened !== next.path[0]) {
          opened = next.path[0];
          openChart();
        }
        openImpact();
        return true;
      },
      key(event) {
        if (event.key !== "Escape" || !opened) return false;
        go(hash("mesh", [], Object.fromEntries(route.params)));
        return true;
      },
      close() {
        chart?.close();
        impact?.close();
      },
    };
  },
};
