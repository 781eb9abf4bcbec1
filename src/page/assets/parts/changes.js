// Changes: the changes of the last ten minutes and then the stream, one line per change, newest
// first. During a pause, new changes are counted and shown later. The filters are those of the API and are in the URL.

import { Component, html } from "../html.js";
import { ask, follow, query } from "../api.js";
import { go, hash } from "../route.js";
import { clock, linkOfKey, number, ofKey, phase, plural } from "../words.js";

/** Maximum number of retained lines. */
const LINES_MAX = 500;
/** Maximum number of lines that are drawn while changes arrive. */
const DRAWN_MAX = 100;

/** Minimum interval between draws of many changes, in ms: all lines move each time. */
const FLOOD_EVERY_MS = 250;

/** Time whose changes are shown when the part opens. */
const RECENT = "10m";
/** Number of changes per request for the recent changes, and maximum number of requests. */
const RECENT_LIMIT = 500;
const RECENT_REQUESTS_MAX = 10;
/** The shown time, by the part of the recent changes that is known. */
const RECENT_TIMES = { all: "in the last ten minutes and since then", some: "in a part of the last ten minutes and since then", none: "since the page was opened" };

const KINDS = ["node", "service", "identity", "ipcache", "serviceExport", "endpointSlice", "cluster"];
const SHORT = { node: "node", service: "service", identity: "identity", ipcache: "ip", serviceExport: "export", endpointSlice: "slice", cluster: "cluster", problem: "problem" };

/** Returns the text about an object in a line. */
function description(kind, object) {
  switch (kind) {
    case "ipcache":
      return [object.podName && `${object.namespace}/${object.podName}`, `identity ${object.identity}`, object.hostIP && `via ${object.hostIP}`];
    case "node":
      return [object.addresses?.[0]?.ip, object.ipv4PodCIDR];
    case "service":
      return [plural(object.backends.length, "backend"), object.shared ? "shared" : "not shared"];
    case "identity":
      return [Object.entries(object.labels ?? {}).filter(([key]) => !key.includes("io.cilium")).slice(0, 3).map(([key, value]) => `${key}=${value}`).join(", ")];
    case "endpointSlice":
      return [plural(object.endpoints.length, "endpoint")];
    case "serviceExport":
      return [object.type];
    default:
      return [];
  }
}

/** Returns the text about a patch: backends that were added or changed, and removed ones. */
function patched(backends) {
  const some = (all, sign) => (all.length > 3 ? [`${sign}${number(all.length)} backends`] : all.map((ip) => `${sign}${ip}`));
  return [...some(backends.upserted.map((one) => one.ip), "+"), ...some(backends.removed, "−")];
}

/**
 * Returns the time of an event's change in ms: the latest possible one if it is not exactly known,
 * and now if it has none.
 */
function changedAt(event) {
  const change = event.type === "upsert" ? event.object : event.meta;
  const text = change?.changedAt ?? change?.changedBetween?.[1] ?? change?.firstSeenAt;
  return text ? Math.min(Date.parse(text), Date.now()) : Date.now();
}

function line(event, number) {
  const parsed = ofKey(event.key);
  const base = { id: number, at: changedAt(event), kind: event.kind, cluster: event.meta?.cluster ?? parsed?.cluster ?? "", link: linkOfKey(event.key) };
  if (event.type === "cluster") {
    const { object } = event;
    return { ...base, sign: "·", cluster: object.name, name: phase(object.phase), rest: object.phase === "live" ? "" : (object.lastError ?? ""), link: hash("mesh", [object.name]) };
  }
  const name = event.kind === "ipcache" ? (event.object?.prefix ?? parsed?.name) : (parsed?.name ?? event.key);
  if (event.type === "delete") return { ...base, sign: "−", name, rest: event.reason === "deleted" ? "" : event.reason === "leftFilter" ? "no longer matches the filter" : "" };
  if (event.type === "patch") return { ...base, sign: "~", name, rest: patched(event.backends).join("  ") };
  return { ...base, sign: "+", name, rest: description(event.kind, event.object).filter(Boolean).join("  ") };
}

const SIGNS = { "+": "new or changed", "−": "deleted", "~": "backends changed", "·": "phase" };

/** One line. It never changes, so it is drawn once. */
class Line extends Component {
  shouldComponentUpdate() {
    return false;
  }

  render({ one }) {
    return html`<li class="change">
      <time>${clock(one.at)}</time> <span class="cluster">${one.cluster}</span>
      <span class="sign sign-${{ "+": "plus", "−": "minus", "~": "tilde", "·": "dot" }[one.sign]}" role="img" aria-label=${SIGNS[one.sign]}>${one.sign}</span>
      <span class="kind">${SHORT[one.kind] ?? one.kind}</span>
      <span class="what">${one.link ? html`<a data-row class="mono" href=${one.link}>${one.name}</a>` : html`<span class="mono">${one.name}</span>`}
        ${one.rest && html` <span class="rest">${one.rest}</span>`}</span>
    </li>`;
  }
}

/** Query parameters of the stream. The API reports invalid filters. */
const TEXT_FILTERS = [
  ["cluster", "cluster"],
  ["namespace", "namespace"],
  ["name", "name"],
  ["cidr", "within (prefix)"],
  ["pod", "pod"],
  ["identity", "identity"],
];

class ChangeList {
  constructor(params, draw) {
    this.lines = [];
    this.count = 0;
    this.noticeCount = 0;
    this.recent = "none";
    this.pausedCount = 0;
    this.pausedAt = null;
    this.link = { state: "connecting" };
    this.trouble = null;
    this.draw = draw;
    const filter = { kind: params.getAll("kind"), patch: true };
    for (const [name] of TEXT_FILTERS) filter[name] = params.getAll(name);
    this.isNarrow = TEXT_FILTERS.some(([name]) => name !== "cluster" && filter[name].some(Boolean));
    this.stream = { close: () => (this.isClosed = true) };
    this.start(filter);
  }

  /** Shows the recent changes, and follows the stream from there. */
  async start(filter) {
    const { patch: _, ...filters } = filter;
    let next;
    // only an answer without `more` ends at a position that the stream accepts
    let position;
    try {
      for (let count = 0; position === undefined && count < RECENT_REQUESTS_MAX && !this.isClosed; count += 1) {
        const from = next === undefined ? { since: RECENT } : { after: next };
        const answer = await ask(`/v1/changes${query({ ...filters, ...from, limit: RECENT_LIMIT })}`);
        // meshkeep no longer has these changes, or does not have them yet
        if (answer.reset) break;
        for (const event of answer.events) this.handle(event);
        next = answer.nextPosition;
        if (!answer.more) position = next;
      }
    } catch {
      // the stream reports what is wrong
    }
    if (this.isClosed) return;
    this.recent = position !== undefined ? "all" : next !== undefined ? "some" : "none";
    if (this.recent === "some") this.addNotice("Further changes of the last ten minutes are left out", "filter them to see all");
    this.follow(position === undefined ? filter : { ...filter, after: position });
  }

  follow(filter) {
    const { draw } = this;
    this.stream = follow(filter, {
      link: (link) => {
        this.link = link;
        if (link.state !== "lost") this.trouble = null;
        draw();
      },
      refused: (error) => {
        this.trouble = error.message;
        this.stream.close();
        draw();
      },
      event: (event) => this.handle(event),
    });
  }

  handle(event) {
    if (event.type === "reset") {
      // a snapshot follows, whose entries are not changes: one line replaces them
      this.isSnapshot = event.reason !== "initial";
      this.addNotice("meshkeep could not continue from here", `(${event.reason}): changes in between are unknown`);
    } else if (event.type === "synced") {
      this.isSnapshot = false;
    } else if (this.isNarrow && event.type === "delete" && event.reason === "unknown") {
      // the key changed while the stream was disconnected; it may never have matched the filter
    } else if (["upsert", "patch", "delete", "cluster"].includes(event.type) && !this.isSnapshot) {
      this.add(line(event, (this.count += 1)));
    }
  }

  /** Adds a line about changes that are not shown. */
  addNotice(name, rest) {
    this.add({ id: `notice ${(this.noticeCount += 1)}`, at: Date.now(), kind: "", cluster: "", sign: "·", name, rest });
  }

  add(one) {
    if (this.pausedAt !== null) this.pausedCount += 1;
    // during a pause, new lines are collected up to the maximum
    const into = this.pausedAt === null ? this.lines : (this.waiting ??= []);
    into.unshift(one);
    if (into.length > LINES_MAX) into.length = LINES_MAX;
    this.scheduleDraw();
  }

  /** Draws a single change immediately, and many changes four times per second. */
  scheduleDraw() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.drawnAt = Date.now();
      this.draw();
    }, Math.max(0, (this.drawnAt ?? 0) + FLOOD_EVERY_MS - Date.now()));
  }

  toggle() {
    if (this.pausedAt === null) {
      this.pausedAt = Date.now();
      this.pausedCount = 0;
      this.waiting = [];
    } else {
      this.lines = [...this.waiting, ...this.lines].slice(0, LINES_MAX);
      this.pausedAt = null;
      this.waiting = null;
    }
    this.draw();
  }
}

function Filters({ params, change }) {
  const kinds = params.getAll("kind");
  const toggle = (kind) => change("kind", kinds.includes(kind) ? kinds.filter((one) => one !== kind) : [...kinds, kind]);
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()} aria-label="filters">
    <div class="pills">${KINDS.map((kind) => html`<button key=${kind} type="button" class="pill" aria-pressed=${kinds.includes(kind)} onClick=${() => toggle(kind)}>${SHORT[kind]}</button>`)}</div>
    <div class="boxes">${TEXT_FILTERS.map(([name, words]) => html`<input key=${name} name=${name} placeholder=${words} aria-label=${words} value=${params.get(name) ?? ""}
      onChange=${(event) => change(name, event.target.value.trim())} />`)}</div>
  </form>`;
}

export const changes = {
  title: () => "Changes",
  commands({ params }) {
    const filter = Object.fromEntries(["kind", ...TEXT_FILTERS.map(([name]) => name)].map((name) => [name, params.getAll(name).filter(Boolean)]));
    const option = (name) => (["kind", "cluster", "namespace"].includes(name) ? `--${name}=` : `--filter=${name}=`);
    const words = Object.entries(filter).flatMap(([name, values]) => values.map((value) => option(name) + value));
    return { path: `/v1/events${query(filter)}`, words: ["watch", ...words], isStream: true };
  },

  open(route, draw) {
    let following = new ChangeList(route.params, draw);
    const change = (name, value) => {
      const params = Object.fromEntries([...route.params.keys()].map((one) => [one, route.params.getAll(one)]));
      go(hash("changes", [], { ...params, [name]: value }), true);
    };

    return {
      view() {
        const { lines, pausedAt, pausedCount, count, recent, trouble, link } = following;
        return html`<h1 class="unseen">Changes</h1>
          <${Filters} params=${route.params} change=${change} />
          <div class="run">
            <button type="button" class="main" onClick=${() => following.toggle()} aria-pressed=${pausedAt !== null}>${pausedAt === null ? "pause" : "continue"}</button>
            <span class="quiet">${pausedAt !== null ? html`paused: <b>${number(pausedCount)}</b> since ${clock(pausedAt)}` : link.state === "lost" ? "lost, reconnecting" : link.state === "connecting" ? "connecting" : link.state === "surplus" ? "waiting: other windows of this page use the connections" : `${plural(count, "change")} ${RECENT_TIMES[recent]}`}</span>
          </div>
          ${trouble && html`<p class="sentence red">${trouble}</p>`}
          ${lines.length === 0 && link.state === "following" && !trouble && html`<p class="sentence quiet">${recent === "all" ? "No changes in the last ten minutes" : "The changes of the last ten minutes are not known"}. New changes appear here immediately.</p>`}
          <ol class="changes" aria-label="changes, newest first">${lines.slice(0, pausedAt === null ? DRAWN_MAX : LINES_MAX).map((one) => html`<${Line} key=${one.id} one=${one} />`)}</ol>
          ${pausedAt === null && lines.length > DRAWN_MAX && html`<p class="quiet">${number(lines.length - DRAWN_MAX)} older changes are kept: pause to read them.</p>`}`;
      },
      key(event) {
        if (event.key !== "p") return false;
        following.toggle();
        return true;
      },
      moved(next) {
        route = next;
        following.stream.close();
        following = new ChangeList(route.params, draw);
        return true;
      },
      close: () => following.stream.close(),
    };
  },
};
