// Timeline of an address: the versions of the entries that cover it, newest first, with what each
// version changed and with the periods whose changes are not known.

import { html } from "../html.js";
import { ask, query } from "../api.js";
import { atMostEvery } from "../mirror.js";
import { hash } from "../route.js";
import { dateTime, plural, utc } from "../words.js";

/** Number of versions per request. */
const PAGE = 100;
/** Maximum number of versions that are read again when the address changes. */
const READ_AGAIN_MAX = 1_000;
/** Minimum interval between requests of the versions, in ms: each reads files. */
const READ_EVERY_MS = 5_000;
/** Maximum difference between the periods of a cluster's kinds that are shown as one, in ms. */
const KINDS_WITHIN_MS = 2_000;
/** Maximum number of periods that are named between two versions. */
const PERIODS_MAX = 5;

const KINDS = { ipcache: "addresses", node: "nodes", identity: "identities" };
const ENDS = { updated: "replaced", deleted: "deleted", clusterRemoved: "its cluster was removed" };

/** Members of an entry that the timeline compares. */
const MEMBERS = [
  ["pod", (entry) => entry.podName && `${entry.namespace}/${entry.podName}`],
  ["node", (entry) => entry.nodeName ?? entry.hostIP],
  ["identity", (entry) => String(entry.identity)],
];

/** A time in the time zone of the browser. */
export function Time({ time }) {
  return html`<time datetime=${time} title=${time}>${dateTime(time)}</time>`;
}

/** Time of a change, as exactly as it is known. */
function Moment({ change }) {
  if (change.changedAt) return html`<${Time} time=${change.changedAt} />`;
  if (change.changedBetween) return html`some time between <${Time} time=${change.changedBetween[0]} /> and <${Time} time=${change.changedBetween[1]} />`;
  return change.firstSeenAt ? html`before <${Time} time=${change.firstSeenAt} />` : "an unknown time";
}

/** Returns the latest possible time of a change, in ms, or null if it is not known. */
function latest(change) {
  const text = change?.changedAt ?? change?.changedBetween?.[1] ?? change?.firstSeenAt;
  return text === undefined ? null : Date.parse(text);
}

/**
 * Returns a time at which a version was in effect, as text for `at=`, or null if it is not known.
 * `since` is the start of the history.
 */
function timeOf(version, since) {
  const start = latest(version.from);
  return start === null ? null : utc(Math.max(start, since ? Date.parse(since) : 0));
}

/** Returns `pod …, node …, identity …` of an entry. */
function subject(entry) {
  return MEMBERS.map(([name, of]) => [name, of(entry)])
    .filter(([, value]) => value)
    .map(([name, value]) => `${name} ${value}`)
    .join(", ");
}

/**
 * Returns what a version changed: texts such as `pod shop/a → shop/b`. `older` has the versions
 * that began earlier, newest first.
 */
function changesOf(version, older, isAll) {
  const entry = version.object;
  if (!entry) return ["its value could not be decoded"];
  const isSamePrefix = ({ object }) => object?.prefix === entry.prefix && object.host === entry.host;
  const before = older.find((one) => one.key === version.key && isSamePrefix(one)) ?? older.find(isSamePrefix);
  if (!before) return isAll ? ["the first known version"] : [];
  const changes = MEMBERS.map(([name, of]) => [name, of(before.object) ?? "none", of(entry) ?? "none"])
    .filter(([, one, other]) => one !== other)
    .map(([name, one, other]) => `${name} ${one} → ${other}`);
  if (before.object.cluster !== entry.cluster) {
    const hasEnded = before.to && latest(before.to) <= latest(version.from);
    changes.unshift(hasEnded ? `cluster ${before.object.cluster} → ${entry.cluster}` : `${before.object.cluster} had an entry for the same prefix`);
  }
  if (before.ended === "deleted" && before.key === version.key) changes.unshift("announced again");
  return changes.length > 0 ? changes : ["other members changed"];
}

/** Returns whether two times, or two missing ones, are nearly equal. */
function isNear(one, other) {
  return one === other || Math.abs(Date.parse(one) - Date.parse(other)) < KINDS_WITHIN_MS;
}

/** Returns periods in which the kinds of one cluster are joined: `{id, cluster, kinds, from, to}`. */
export function joined(gaps) {
  const periods = new Map();
  for (const { cluster, kind, from, to } of gaps) {
    if (!periods.has(cluster)) periods.set(cluster, []);
    const ofCluster = periods.get(cluster);
    let period = ofCluster.find((one) => isNear(one.from, from) && isNear(one.to, to));
    if (!period) ofCluster.push((period = { id: JSON.stringify([cluster, kind, from, to]), cluster, kinds: [], from, to }));
    if (kind) period.kinds.push(KINDS[kind] ?? kind);
  }
  return [...periods.values()].flat();
}

/** Sentence about a period whose changes are not known. */
export function Period({ period }) {
  const { cluster, kinds, from, to } = period;
  const words = cluster ? html`meshkeep did not observe <b>${cluster}</b> (${kinds.join(", ")})` : "meshkeep lost the changes";
  const start = from ? html` from <${Time} time=${from} />` : " from the beginning";
  return html`${words}${start}${to ? html` to <${Time} time=${to} />` : " until now"}`;
}

/** The period or periods between two versions. */
function Gap({ periods }) {
  return html`<li class="version gap"><div class="version-words"><p><b>Gap</b></p>
    <ul class="plain">${periods.slice(0, PERIODS_MAX).map((period) => html`<li key=${period.id}><${Period} period=${period} /></li>`)}</ul>
    ${periods.length > PERIODS_MAX && html`<p>${plural(periods.length - PERIODS_MAX, "more period")}</p>`}</div></li>`;
}

function Version({ ip, version, changes, since, isShown }) {
  const { object, from, to, ended } = version;
  const at = timeOf(version, since);
  const time = html`<${Moment} change=${from} /> until ${to ? html`<${Moment} change=${to} />` : "now"}`;
  return html`<li class="version ${isShown ? "shown" : ""}"><div class="version-words">
    <p>${at ? html`<a data-row href=${hash("explain", [ip], { at })} aria-current=${isShown ? "true" : undefined}>${time}</a>` : time}
      ${ended && html` <span class="tag">${ENDS[ended] ?? ended}</span>`}</p>
    <p>${object ? html`<span class="chip">${object.cluster}</span> <span class="mono">${object.prefix}</span> <span class="quiet">${subject(object)}</span>` : html`<span class="mono">${version.key}</span>`}</p>
    ${changes.length > 0 && html`<p class="why">${changes.join("; ")}</p>`}
  </div></li>`;
}

/** The versions that an answer may be about, if its time may mean several. */
export function Candidates({ ip, candidates, hasMatch, since }) {
  if (!candidates?.length) return null;
  return html`<section class="card wide candidates"><h2>possible versions</h2>
    <p>It is not known which of these was in effect at this time. ${hasMatch ? "The answer is about the first one." : ""}</p>
    <ol class="timeline">${candidates.map((version) => html`<${Version} key=${idOf(version)} ip=${ip} version=${version} changes=${[]} since=${since} />`)}
      ${candidates.length === 1 && html`<li class="version"><div class="version-words"><p>no entry</p></div></li>`}</ol></section>`;
}

/** Returns a text that few other versions have. */
function idOf({ key, from, object }) {
  return JSON.stringify([key, from, object]);
}

/** Returns whether an answer about the time `at` in ms is about a version. */
function isAbout({ object, from, to }, at, match) {
  const isSame = match && object?.prefix === match.prefix && object.cluster === match.cluster && object.host === match.host;
  return isSame && latest(from) <= at && (!to || at < latest(to));
}

/** Versions and periods of an address, read page by page. */
export class Timeline {
  constructor(ip, draw) {
    this.ip = ip;
    this.draw = draw;
    this.stop = new AbortController();
    this.versions = null;
    this.rows = [];
    this.limit = PAGE;
    this.read = atMostEvery(READ_EVERY_MS, () => this.isOff || this.request());
    this.read();
  }

  /**
   * Reads the first page, or the next one. Requests run one after the other, because each changes
   * the versions.
   */
  request(isNext = false) {
    this.reading = (this.reading ?? Promise.resolve()).then(() => this.load(isNext ? this.next : undefined));
    return this.reading;
  }

  async load(pageToken) {
    // a page token belongs to its limit
    if (pageToken === undefined) this.limit = Math.min(READ_AGAIN_MAX, Math.max(PAGE, this.versions?.length ?? 0));
    try {
      const answer = await ask(`/v1/history${query({ ip: this.ip, limit: this.limit, pageToken })}`, this.stop.signal);
      const isFirst = pageToken === undefined;
      const added = answer.items ?? [];
      // a version that ended in the meantime is in both pages
      const ended = new Set(added.map(idOf));
      this.versions = [...(isFirst ? [] : this.versions.filter((one) => one.to || !ended.has(idOf(one)))), ...added];
      const gaps = new Map([...(isFirst ? [] : this.gaps), ...joined(answer.gaps ?? [])].map((period) => [period.id, period]));
      this.gaps = [...gaps.values()];
      this.since = answer.since;
      this.next = answer.nextPageToken;
      this.trouble = null;
      this.rows = this.sorted();
    } catch (error) {
      if (this.stop.signal.aborted) return;
      // a page token from before a restart is invalid: start again from the first page
      if (pageToken !== undefined && error.status === 400) return this.load();
      this.trouble = error;
    }
    this.draw();
  }

  /** Returns true if meshkeep keeps no history. */
  get isOff() {
    return this.trouble?.status === 404;
  }

  /** Returns the versions with their changes and the periods, newest first. */
  sorted() {
    const versions = this.versions.map((version) => ({ version, start: latest(version.from) ?? -Infinity }));
    const startOf = ({ from, to }) => (from ? Date.parse(from) : to ? -Infinity : Infinity);
    const periods = this.gaps.map((period) => ({ period, start: startOf(period) }));
    // sorts are stable: versions that began at the same time keep their order
    const all = [...versions, ...periods].sort((one, other) => (one.start === other.start ? 0 : other.start - one.start));
    const older = all.map(({ version }) => version).filter(Boolean);
    const rows = [];
    for (const { version, period } of all) {
      // the number of older versions identifies a row while newer ones arrive
      if (version) rows.push({ id: older.length, version, changes: changesOf(older.shift(), older, !this.next) });
      else if (rows.at(-1)?.periods) rows.at(-1).periods.push(period);
      else rows.push({ periods: [period] });
    }
    return rows;
  }

  /** Draws the timeline for an answer: `at` is its time in ms, or null if it is the newest one. */
  view(at, match) {
    const { ip, trouble, since } = this;
    if (this.isOff) return html`<p class="quiet">${trouble.message}.</p>`;
    if (!this.versions) return html`<p class=${trouble ? "red" : "quiet"}>${trouble ? trouble.message : "Searching …"}</p>`;
    const { rows, versions } = this;
    return html`${trouble && html`<p class="red">${trouble.message}</p>`}
      ${versions.length === 0 && html`<p class="quiet">No version of an entry for this address is known.</p>`}
      <ol class="timeline" aria-label="versions of the address, newest first">
        <li class="version ${at === null ? "shown" : ""}"><div class="version-words"><p><a data-row href=${hash("explain", [ip])} aria-current=${at === null ? "true" : undefined}>newest</a></p></div></li>
        ${rows.map(({ id, version, changes, periods }) =>
          version
            ? html`<${Version} key=${id} ip=${ip} version=${version} changes=${changes} since=${since} isShown=${at !== null && isAbout(version, at, match)} />`
            : html`<${Gap} key=${periods[0].id} periods=${periods} />`,
        )}
      </ol>
      ${this.next && html`<p><button type="button" onClick=${() => this.request(true)}>older versions</button></p>`}
      <p class="quiet">${plural(versions.length, "version")}${this.next ? ", and there may be older ones" : ""}.
        ${since ? html` The history begins at <${Time} time=${since} />.` : " The history has no changes yet."}</p>`;
  }

  close() {
    this.stop.abort();
  }
}
