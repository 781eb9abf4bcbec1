// Changes: the stream, one line each, newest on top. A pause goes on counting; the filters are the API's and stand in the address.

import { Component, html } from "../html.js";
import { follow } from "../api.js";
import { go, hash } from "../route.js";
import { clock, linkOfKey, number, ofKey, phase, plural } from "../words.js";

/** Lines that are kept. */
const LINES_MAX = 500;
/** Lines that are drawn while changes come fast: more is not read. */
const DRAWN_MAX = 100;

/** Lines that come in a flood are drawn so often: nobody reads more, and each time all move. */
const FLOOD_EVERY_MS = 250;

const KINDS = ["node", "service", "identity", "ipcache", "serviceExport", "endpointSlice", "cluster"];
const SHORT = { node: "node", service: "service", identity: "identity", ipcache: "ip", serviceExport: "export", endpointSlice: "slice", cluster: "cluster", problem: "problem" };

/** What of an object a line shows. */
function gist(kind, object) {
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

/** The backends that a patch names: those that came or changed, and those that went. */
function patched(backends) {
  const some = (all, sign) => (all.length > 3 ? [`${sign}${number(all.length)} backends`] : all.map((ip) => `${sign}${ip}`));
  return [...some(backends.upserted.map((one) => one.ip), "+"), ...some(backends.removed, "−")];
}

function line(event, number) {
  const of = ofKey(event.key);
  const base = { id: number, at: Date.now(), kind: event.kind, cluster: event.meta?.cluster ?? of?.cluster ?? "", link: linkOfKey(event.key) };
  if (event.type === "cluster") {
    const { object } = event;
    return { ...base, sign: "·", cluster: object.name, name: phase(object.phase), rest: object.phase === "live" ? "" : (object.lastError ?? ""), link: hash("mesh", [object.name]) };
  }
  const name = event.kind === "ipcache" ? (event.object?.prefix ?? of?.name) : (of?.name ?? event.key);
  if (event.type === "delete") return { ...base, sign: "−", name, rest: event.reason === "deleted" ? "" : event.reason === "leftFilter" ? "no longer matches the filter" : "" };
  if (event.type === "patch") return { ...base, sign: "~", name, rest: patched(event.backends).join("  ") };
  return { ...base, sign: "+", name, rest: gist(event.kind, event.object).filter(Boolean).join("  ") };
}

const SIGNS = { "+": "new or changed", "−": "deleted", "~": "backends changed", "·": "phase" };

/** A line never changes: it is drawn once, and moves down. */
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

/** What the stream is asked for; a filter that the API does not know is told by its answer. */
const TEXT_FILTERS = [
  ["cluster", "cluster"],
  ["namespace", "namespace"],
  ["name", "name"],
  ["cidr", "within (prefix)"],
  ["pod", "pod"],
  ["identity", "identity"],
];

class Following {
  constructor(params, draw) {
    this.lines = [];
    this.count = 0;
    this.missed = 0;
    this.pausedAt = null;
    this.link = { state: "connecting" };
    this.trouble = null;
    this.draw = draw;
    const filter = { kind: params.getAll("kind"), patch: true };
    for (const [name] of TEXT_FILTERS) filter[name] = params.getAll(name);
    this.isNarrow = TEXT_FILTERS.some(([name]) => name !== "cluster" && filter[name].some(Boolean));
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
      event: (event) => this.take(event),
    });
  }

  take(event) {
    if (event.type === "reset") {
      // what follows is a snapshot, no change: it is told as one line
      this.isSnapshot = event.reason !== "initial";
      this.add({ id: (this.count += 1), at: Date.now(), kind: "", cluster: "", sign: "·", name: "meshkeep could not go on from here", rest: `(${event.reason}): what changed meanwhile is not known` });
    } else if (event.type === "synced") {
      this.isSnapshot = false;
    } else if (this.isNarrow && event.type === "delete" && event.reason === "unknown") {
      // the key changed while the stream was broken, and whether it ever matched the filter nobody knows
    } else if (["upsert", "patch", "delete", "cluster"].includes(event.type) && !this.isSnapshot) {
      this.add(line(event, (this.count += 1)));
    }
  }

  add(one) {
    if (this.pausedAt !== null) this.missed += 1;
    // while it is paused the lines wait beside, as many as will be shown
    const into = this.pausedAt === null ? this.lines : (this.waiting ??= []);
    into.unshift(one);
    if (into.length > LINES_MAX) into.length = LINES_MAX;
    this.soon();
  }

  /** The first of a while is drawn at once, a flood four times a second. */
  soon() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.toldAt = Date.now();
      this.draw();
    }, Math.max(0, (this.toldAt ?? 0) + FLOOD_EVERY_MS - Date.now()));
  }

  toggle() {
    if (this.pausedAt === null) {
      this.pausedAt = Date.now();
      this.missed = 0;
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

  open(route, draw) {
    let following = new Following(route.params, draw);
    const change = (name, value) => {
      const params = Object.fromEntries([...route.params.keys()].map((one) => [one, route.params.getAll(one)]));
      go(hash("changes", [], { ...params, [name]: value }), true);
    };

    return {
      view() {
        const { lines, pausedAt, missed, count, trouble, link } = following;
        return html`<h1 class="unseen">Changes</h1>
          <${Filters} params=${route.params} change=${change} />
          <div class="run">
            <button type="button" class="main" onClick=${() => following.toggle()} aria-pressed=${pausedAt !== null}>${pausedAt === null ? "pause" : "go on"}</button>
            <span class="quiet">${pausedAt !== null ? html`paused: <b>${number(missed)}</b> since ${clock(pausedAt)}` : link.state === "lost" ? "lost, comes back by itself" : `${plural(count, "change")} since it was opened`}</span>
          </div>
          ${trouble && html`<p class="sentence red">${trouble}</p>`}
          ${lines.length === 0 && !trouble && html`<p class="sentence quiet">Nothing has changed since this was opened. A change stands here as soon as meshkeep has it.</p>`}
          <ol class="changes" aria-label="changes, newest first">${lines.slice(0, pausedAt === null ? DRAWN_MAX : LINES_MAX).map((one) => html`<${Line} key=${one.id} one=${one} />`)}</ol>
          ${pausedAt === null && lines.length > DRAWN_MAX && html`<p class="quiet">${number(lines.length - DRAWN_MAX)} older ones are kept: pause to read them.</p>`}`;
      },
      key(event) {
        if (event.key !== "p") return false;
        following.toggle();
        return true;
      },
      moved(next) {
        route = next;
        following.stream.close();
        following = new Following(route.params, draw);
        return true;
      },
      close: () => following.stream.close(),
    };
  },
};
