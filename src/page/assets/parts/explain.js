// Explain: one address with every entry that covers it, most specific first, the winner and the
// reason. For an address without an entry it shows possible reasons. With `at`, all this is about
// an earlier time, which the timeline and the time picker choose.

import { html } from "../html.js";
import { ask, follow, query } from "../api.js";
import { Copy } from "../copy.js";
import { ageOf, atMostEvery, mirror, whenMoved } from "../mirror.js";
import { hash } from "../route.js";
import { clusterState } from "../state.js";
import { Candidates, Period, Time, Timeline, joined } from "./timeline.js";
import { TimePicker } from "./time_picker.js";
import { address, age, clock, dateTime, labels, phase, plural, since, tone } from "../words.js";

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

/** Age and state of the data of the newest explanation. */
function Trust({ answer, at }) {
  const { match, meta } = answer;
  // the current age, because the answer only has the age at its request
  const known = match && mirror.clusters.get(match.cluster);
  const isFollowed = match ? meta.phase === "live" : meta.liveSources === meta.sourceCount;
  const reported = meta.ageSeconds ?? meta.oldestAgeSeconds;
  const currentAge = known ? ageOf(known) : reported === undefined || isFollowed ? reported : reported + (Date.now() - at) / 1000;
  const inPhase = known?.object.phase ?? meta.phase;
  return match
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
}

/** Says that the answer is about an earlier time, and what is not known about that time. */
function AsOf({ ip, answer }) {
  const { at, complete, gaps = [], candidates } = answer.meta;
  const toNow = () => document.getElementById("main").focus({ preventScroll: true });
  return html`<div class="as-of">
    <p><b>As of <${Time} time=${at} /></b>, ${age(since(at))} ago. This is not the newest data. <a href=${hash("explain", [ip])} onClick=${toNow}>back to now</a></p>
    ${!complete && html`<p><b>The answer is not certain.</b> ${gaps.length === 0 && !candidates && "A part of the history is lost."}</p>`}
    ${gaps.length > 0 && html`<ul class="plain">${joined(gaps).map((period) => html`<li key=${period.id}><${Period} period=${period} /></li>`)}</ul>`}
  </div>`;
}

/** Says that no entry covers the address. */
function Miss({ meta }) {
  if (!meta.at) return html`<p class="sentence">No cluster announces this address or a range around it. To an agent it is <b>world</b>: policies by label do not match it, and traffic to it takes no tunnel.</p>`;
  const known = meta.complete ? "No cluster announced this address or a range around it at this time." : "meshkeep knows of no entry for this address or a range around it at this time.";
  return html`<p class="sentence">${known} Without an entry, it was <b>world</b> to an agent.</p>`;
}

function Head({ answer, at }) {
  const { ip, match, meta } = answer;
  return html`<header class="answer">
    <h1><span class="mono">${ip}</span><${Copy} text=${ip} /> <span class="arrow" aria-hidden="true">→</span> ${
      match
        ? html`<a class="chip large" href=${hash("mesh", [match.cluster])}>${match.cluster}</a> <a href=${hash("find", [String(match.identity)])}>${identity(match)}</a><${Copy} text=${String(match.identity)} name=${`copy identity ${match.identity}`} />
            ${match.podName && html` <span class="pod">${match.namespace}/${match.podName}</span>`}`
        : html`<span class="miss">no entry</span>`
    }</h1>
    ${!meta.at && html`<p><${Trust} answer=${answer} at=${at} /></p>`}
    ${match && !match.host && !isWhole(match.prefix) && html`<p class="sentence">${meta.at ? "No cluster announced the address itself; the range that contains it decided" : "No cluster announces the address itself; the range that contains it decides"}.</p>`}
    ${!match && html`<${Miss} meta=${meta} />`}
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
  if (!problems?.length) return null;
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

/**
 * The explanation. `below` is between the entries and the cards. If it is pending, another time was
 * chosen, and the answer about it has not arrived yet.
 */
function View({ answer, at, isPending, below, historySince }) {
  const { ip, match, entries, node, services, problems, hints, complete, meta } = answer;
  return html`<article class="explain" aria-busy=${isPending}>
    ${isPending && html`<p class="quiet">Searching the chosen time …</p>`}
    <p class="unseen" role="status">${meta.at && `${ip} as of ${dateTime(meta.at)}${meta.complete ? "" : ": the answer is not certain"}`}</p>
    ${meta.at && html`<${AsOf} ip=${ip} answer=${answer} />`}
    <${Head} answer=${answer} at=${at} />
    <${Candidates} ip=${ip} candidates=${meta.candidates} hasMatch=${match !== null} since=${historySince} />
    ${entries.length > 0 && html`<${Ladder} entries=${entries} />`}
    ${below}
    <div class="cards">
      <${Hints} hints=${hints} />
      <${Problems} problems=${problems} />
      ${match && html`<${Labels} match=${match} />`}
      ${node && html`<${Node} node=${node} match=${match} />`}
      ${match && services && html`<${Services} services=${services} isComplete=${complete} />`}
    </div>
  </article>`;
}

/** The explanation of one address, at the time that the URL chooses. */
class Explanation {
  constructor(ip, at, draw) {
    this.ip = ip;
    this.draw = draw;
    this.timeline = new Timeline(ip, draw);
    // an earlier state does not change
    this.readNewest = atMostEvery(READ_EVERY_MS, () => (this.at && !this.trouble) || this.request());
    // a phase that changes also begins or ends a gap
    this.stopListening = whenMoved((what) => {
      if (what !== "cluster" && what !== "synced" && !this.trouble && !this.timeline.trouble) return;
      // a refused time is refused again
      if (!this.at || ![400, 404].includes(this.trouble?.status)) this.readNewest();
      this.timeline.read();
    });
    this.choose(at);
  }

  /** Shows the explanation at another time, or without `at` the newest one, which is followed. */
  choose(at) {
    const isBack = Boolean(this.at) && !at;
    this.at = at;
    this.trouble = null;
    this.stream?.close();
    this.stream = at ? null : this.followEntries();
    this.request();
    // the entries were not followed while an earlier time was shown
    if (isBack) this.timeline.read();
  }

  /**
   * Follows the entries of the address. Other changes, such as nodes, move the position of the
   * page's own stream.
   */
  followEntries() {
    const { ip } = this;
    const changed = ["upsert", "delete", "reset"];
    const event = ({ type }) => {
      if (!changed.includes(type)) return;
      this.readNewest();
      this.timeline.read();
    };
    const stream = follow({ kind: "ipcache", cidr: `${ip}/${ip.includes(":") ? 128 : 32}` }, { link() {}, refused: () => stream.close(), event });
    return stream;
  }

  async request() {
    this.stop?.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    const { at } = this;
    try {
      const answer = await ask(`/v1/explain/${encodeURIComponent(this.ip)}${query({ at })}`, signal);
      if (signal.aborted) return;
      Object.assign(this, { answer, answeredAt: Date.now(), answeredFor: at, trouble: null });
    } catch (error) {
      if (signal.aborted) return;
      this.trouble = error;
      // the last answer is about another time
      if (at || this.answer?.meta.at) this.answer = null;
    }
    this.draw();
  }

  view() {
    const { ip, at, answer, trouble, timeline } = this;
    // the time of a duration such as 10m is in the answer
    const shown = at ? absolute(answer?.meta.at ?? at) : null;
    const below = html`<section class="card wide times"><h2>versions</h2>
      ${!timeline.isOff && html`<${TimePicker} ip=${ip} at=${shown} />`}
      ${timeline.view(at ? (shown ?? 0) : null, answer?.match)}</section>`;
    if (answer) return html`<${View} answer=${answer} at=${this.answeredAt} isPending=${this.answeredFor !== at} below=${below} historySince=${timeline.since} />`;
    return html`<article class="explain"><div class="sentence"><h1 class="mono">${ip}</h1>
      <p class=${trouble ? "red" : "quiet"} role=${trouble ? "alert" : "status"}>${trouble ? trouble.message : "Searching …"}</p>
      ${at && html`<p><a href=${hash("explain", [ip])}>back to now</a></p>`}</div>${below}</article>`;
  }

  close() {
    this.stop.abort();
    this.stream?.close();
    this.timeline.close();
    this.stopListening();
  }
}

/** Returns a time in ms, or null for a text that is not one, such as the duration `10m`. */
function absolute(text) {
  return /^\d{4}-/.test(text) && !Number.isNaN(Date.parse(text)) ? Date.parse(text) : null;
}

/** Returns the time in `at` as text. */
function atText(at) {
  const time = absolute(at);
  return time === null ? (/^\d+[a-z]/.test(at) ? `${at} ago` : at) : dateTime(time);
}

const addressIn = (route) => address(route.path[0] ?? "");

export const explain = {
  title({ path, params }) {
    const at = params.get("at");
    return path[0] ? `${path[0]}, explained${at ? ` as of ${atText(at)}` : ""}` : "Explain";
  },
  commands(route) {
    const ip = addressIn(route);
    const at = route.params.get("at");
    return ip && { path: `/v1/explain/${ip}${query({ at })}`, words: ["explain", ip, ...(at ? [`--at=${at}`] : [])] };
  },

  open(route, draw) {
    const ip = addressIn(route);
    const explanation = ip && new Explanation(ip, route.params.get("at"), draw);
    return {
      view() {
        if (explanation) return explanation.view();
        return html`<div class="sentence"><h1>Who is this address?</h1>
          <p>${route.path[0] ? html`<b class="mono">${route.path[0]}</b> is not an address. ` : ""}Type an address into the search box (<kbd>/</kbd>) to see every entry of every cluster that covers it, which entry wins and why, its pod, and how old the data is.</p></div>`;
      },
      moved(next) {
        if (!ip || addressIn(next) !== ip) return false;
        explanation.choose(next.params.get("at"));
        return true;
      },
      close: () => explanation?.close(),
    };
  },
};
