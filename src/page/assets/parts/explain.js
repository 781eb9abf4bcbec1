// Explain: one address with every entry that covers it, most specific first, the winner and the
// reason. For an address without an entry it shows possible reasons.

import { html } from "../html.js";
import { ask, follow } from "../api.js";
import { Copy } from "../copy.js";
import { ageOf, atMostEvery, mirror, whenMoved } from "../mirror.js";
import { hash } from "../route.js";
import { clusterState } from "../state.js";
import { address, age, clock, labels, phase, plural, tone } from "../words.js";

/** Minimum interval between requests of the explanation, in ms: it reads all clusters. */
const READ_EVERY_MS = 2_000;

const VERDICTS = { shadowed: "shadowed", lessSpecific: "covered", outranked: "outranked" };

function subject(entry) {
  if (entry.podName) return `pod ${entry.namespace ? `${entry.namespace}/` : ""}${entry.podName}${entry.nodeName ? ` on ${entry.nodeName}` : ""}`;
  if (entry.source === "node") return `${entry.host ? "address" : "pod range"} of ${entry.nodeName ?? "a node"}`;
  return entry.host ? "no pod name" : "a range";
}

function identity(entry) {
  const name = Object.keys(entry.labels ?? {}).find((key) => key.startsWith("reserved:"));
  return name ? `${name.slice(9)} (${entry.identity})` : `identity ${entry.identity}`;
}

/**
 * The line through all bars is the address. The width of a bar shows the size of the entry's range,
 * by its prefix length.
 */
function Rung({ entry, length }) {
  const bits = entry.prefix.includes(":") ? 128 : 32;
  const half = (1 - length / bits) * 42;
  const kind = `${entry.verdict === "wins" ? "wins" : ""} ${entry.origin === "restored" ? "restored" : ""}`;
  return html`<svg aria-hidden="true">
    <line class="line" x1="50%" x2="50%" y1="0" y2="100%" />
    ${half > 0 && html`<rect class="range ${kind}" x=${`${50 - half}%`} width=${`${half * 2}%`} y="50%" height="14" rx="7" transform="translate(0 -7)" />`}
    <circle class="hit ${kind}" cx="50%" cy="50%" r=${half > 0 ? 4 : 8} />
    ${half === 0 && html`<circle class="core ${kind}" cx="50%" cy="50%" r="3" />`}
  </svg>`;
}

function Ladder({ entries }) {
  return html`<ol class="ladder" aria-label="every entry that covers the address, the winner first">
    ${entries.map((entry) => {
      const length = Number(entry.prefix.split("/")[1]);
      const wins = entry.verdict === "wins";
      return html`<li key=${`${entry.cluster} ${entry.prefix} ${entry.host} ${entry.source}`} class="rung ${wins ? "wins" : ""}">
        <span class="length">/${length}</span>
        <div class="rung-picture"><${Rung} entry=${entry} length=${length} /></div>
        <div class="rung-words">
          <p><a class="chip" href=${hash("mesh", [entry.cluster])}>${entry.cluster}</a> <span class="mono">${entry.prefix}</span>
            ${" "}<a href=${hash("find", [String(entry.identity)])}>${identity(entry)}</a> <span class="quiet">${subject(entry)}</span></p>
          <p class="why"><b>${wins ? "wins" : (VERDICTS[entry.verdict] ?? entry.verdict)}</b>: ${entry.reason}${entry.origin === "restored" ? " · restored, its source has not confirmed it" : ""}</p>
        </div>
      </li>`;
    })}
  </ol>`;
}

/** Returns whether a prefix is a single address. */
function isWhole(prefix) {
  return /\/(32|128)$/.test(prefix);
}

function Head({ answer, at }) {
  const { ip, match, meta } = answer;
  // the current age, because the answer only has the age at its request
  const known = match && mirror.clusters.get(match.cluster);
  const isFollowed = match ? meta.phase === "live" : meta.liveSources === meta.sourceCount;
  const reported = meta.ageSeconds ?? meta.oldestAgeSeconds;
  const currentAge = known ? ageOf(known) : reported === undefined || isFollowed ? reported : reported + (Date.now() - at) / 1000;
  const inPhase = known?.object.phase ?? meta.phase;
  const trust = match
    ? html`<span class="is-${known ? clusterState(known) : tone(currentAge)} tone">${meta.origin === "dump" ? "from a dump" : meta.origin !== "live" ? "restored" : inPhase === "live" ? "live" : "last known"}${meta.stale ? ", held: its source lost it" : ""}, from ${age(currentAge)} ago${
        inPhase && inPhase !== "live" ? `; the cluster is ${phase(inPhase)}` : ""
      }</span>`
    : html`<span class="quiet">${
        mirror.status?.dump
          ? `the dump of ${plural(meta.sourceCount, "cluster")} is from ${age(currentAge)} ago`
          : meta.sourceCount
          ? `${meta.liveSources} of ${meta.sourceCount} clusters are live, the oldest data is from ${age(currentAge)} ago`
          : "no cluster is mirrored yet"
      }</span>`;
  return html`<header class="answer">
    <h1><span class="mono">${ip}</span><${Copy} text=${ip} /> <span class="arrow" aria-hidden="true">→</span> ${
      match
        ? html`<a class="chip large" href=${hash("mesh", [match.cluster])}>${match.cluster}</a> <a href=${hash("find", [String(match.identity)])}>${identity(match)}</a><${Copy} text=${String(match.identity)} name=${`copy identity ${match.identity}`} />
            ${match.podName && html` <span class="pod">${match.namespace}/${match.podName}</span>`}`
        : html`<span class="miss">no entry</span>`
    }</h1>
    <p>${trust}</p>
    ${match && !match.host && !isWhole(match.prefix) && html`<p class="sentence">No cluster announces the address itself; the range that contains it decides.</p>`}
    ${!match && html`<p class="sentence">No cluster announces this address or a range around it. To an agent it is <b>world</b>: policies by label do not match it, and traffic to it takes no tunnel.</p>`}
  </header>`;
}

function Card({ title, children }) {
  return html`<section class="card"><h2>${title}</h2>${children}</section>`;
}

function Labels({ match }) {
  const all = labels(match.labels);
  return html`<${Card} title="labels">
    ${all.length === 0 && html`<p class="quiet">The identity's labels are not known.</p>`}
    <ul class="labels">${all.map((one) => html`<li key=${one}><a href=${hash("find", [one.replace(/^reserved:/, "reserved:")])}>${one}</a></li>`)}</ul>
    <p><a href=${hash("find", [String(match.identity)])}>all addresses of identity ${match.identity}</a></p>
  <//>`;
}

function Node({ node, match }) {
  const facts = [
    ["addresses", node.addresses.map((one) => html`<div key=${one.ip}>${one.ip}<${Copy} text=${one.ip} /> <span class="quiet">${one.type}</span></div>`)],
    ["pod ranges", [node.ipv4PodCIDR, node.ipv6PodCIDR, ...(node.secondaryPodCIDRs ?? [])].filter(Boolean).map((one) => html`<div key=${one}>${one}</div>`)],
    ["encryption", [node.encryptionKey && `IPsec key ${node.encryptionKey}`, node.wireguardPublicKey && "WireGuard"].filter(Boolean).join(", ")],
    ["zone", node.labels?.["topology.kubernetes.io/zone"]],
    ["tunnel to", match?.hostIP],
  ].filter(([, value]) => value?.length > 0);
  return html`<${Card} title="node">
    <p><a href=${hash("find", [`${node.cluster}/${node.name}`])}>${node.name}</a> <span class="quiet">in ${node.cluster}</span></p>
    <dl class="facts-list">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
  <//>`;
}

function Services({ services, isComplete }) {
  const names = [...new Set(services.map((one) => `${one.namespace}/${one.name}`))];
  return html`<${Card} title="services">
    ${names.length === 0 && html`<p class="quiet">${isComplete ? "No exported service has this address as a backend." : "Not all services were searched yet."}</p>`}
    <ul class="plain">${services.map((one) => html`<li key=${`${one.kind}${one.cluster}${one.namespace}${one.name}`}>
      ${one.kind === "service" ? html`<a href=${hash("services", [one.namespace, one.name])}>${one.namespace}/${one.name}</a>` : html`${one.namespace}/${one.name} <span class="quiet">endpoint slice</span>`}
      <span class="quiet"> exported by ${one.cluster}</span></li>`)}</ul>
  <//>`;
}

function Problems({ problems }) {
  if (problems.length === 0) return null;
  return html`<${Card} title="problems">
    <ul class="plain">${problems.map((one) => html`<li key=${one.id} class="wrong"><span class="severity ${one.severity}">${one.severity}</span> ${one.detail}
      ${one.advice && html`<span class="quiet"> ${one.advice}</span>`}</li>`)}</ul>
  <//>`;
}

const HINTS = { rejected: "rejected", inside: "more specific", podCIDR: "pod range", deleted: "deleted", neverRead: "never read", restored: "not confirmed", nearest: "nearby" };

function Hints({ hints }) {
  if (!hints?.length) return null;
  return html`<${Card} title="possible reasons">
    <ul class="plain">${hints.map((one, index) => html`<li key=${index}><span class="tag">${HINTS[one.kind] ?? one.kind}</span> ${one.detail}
      ${one.time && html` <span class="quiet">at ${clock(one.time)}</span>`}</li>`)}</ul>
  <//>`;
}

function View({ answer, at }) {
  const { match, entries, node, services, problems, hints, complete } = answer;
  return html`<article class="explain">
    <${Head} answer=${answer} at=${at} />
    ${entries.length > 0 && html`<${Ladder} entries=${entries} />`}
    <div class="cards">
      <${Hints} hints=${hints} />
      <${Problems} problems=${problems} />
      ${match && html`<${Labels} match=${match} />`}
      ${node && html`<${Node} node=${node} match=${match} />`}
      ${match && html`<${Services} services=${services} isComplete=${complete} />`}
    </div>
  </article>`;
}

export const explain = {
  title: (route) => (route.path[0] ? `${route.path[0]}, explained` : "Explain"),
  commands({ path }) {
    const ip = address(path[0] ?? "");
    return ip && { path: `/v1/explain/${ip}`, words: ["explain", ip] };
  },

  open(route, draw) {
    const ip = address(route.path[0] ?? "");
    let answer = null;
    let at = 0;
    let trouble = null;
    let stop = new AbortController();
    const read = atMostEvery(READ_EVERY_MS, async () => {
      try {
        answer = await ask(`/v1/explain/${encodeURIComponent(ip)}`, stop.signal);
        at = Date.now();
        trouble = null;
      } catch (error) {
        if (stop.signal.aborted) return;
        trouble = error;
      }
      draw();
    });
    let stream = null;
    let stopListening = () => {};
    if (ip) {
      read();
      // the entries of the address; other changes, such as nodes, move the position of the page's
      // own stream
      stream = follow(
        { kind: "ipcache", cidr: `${ip}/${ip.includes(":") ? 128 : 32}` },
        { link() {}, refused: () => stream.close(), event: (event) => ["upsert", "delete", "reset"].includes(event.type) && read() },
      );
      stopListening = whenMoved((what) => (what === "cluster" || what === "synced" || trouble) && read());
    }

    return {
      view() {
        if (!ip) {
          return html`<div class="sentence"><h1>Who is this address?</h1>
            <p>${route.path[0] ? html`<b class="mono">${route.path[0]}</b> is not an address. ` : ""}Type an address into the search box (<kbd>/</kbd>) to see every entry of every cluster that covers it, which entry wins and why, its pod, and how old the data is.</p></div>`;
        }
        if (!answer) {
          return html`<div class="sentence"><h1 class="mono">${ip}</h1><p class=${trouble ? "red" : "quiet"}>${trouble ? trouble.message : "Searching …"}</p></div>`;
        }
        return html`<${View} answer=${answer} at=${at} />`;
      },
      close() {
        stop.abort();
        stream?.close();
        stopListening();
      },
    };
  },
};
