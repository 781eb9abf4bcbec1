// Rows of the mesh: their order, filters and folding, the squares with the legend, and the head of
// the table.

import { html } from "../html.js";
import { ageOf, mirror } from "../mirror.js";
import { go, hash } from "../route.js";
import { STATES, clusterPhase, clusterState, lastState, stateWord } from "../state.js";
import { age, compareNames, number, plural } from "../words.js";

export const KINDS = [
  ["node", "nodes"],
  ["service", "services"],
  ["identity", "identities"],
  ["ipcache", "addresses"],
  ["serviceExport", "exports"],
  ["endpointSlice", "slices"],
];

/** Minimum number of healthy clusters that are folded into one row. */
const FOLD_MIN = 12;

/** Order of the rows of one state: never read, then lost, then in progress. */
const PHASE_RANKS = { sourceLost: 1, backingOff: 1, waitingForFiles: 2, connecting: 3, readingConfig: 3, waitingForCanary: 3, draining: 3, listing: 4 };

/** Columns: name in the URL, title, class, and the function that returns the value to sort by. */
export const COLUMNS = [
  ["cluster", "cluster", "", ({ object }) => object.name],
  ["phase", "phase", "", ({ object }) => clusterPhase(object)],
  ["age", "age", "age", (known) => ageOf(known) ?? Infinity],
  ...KINDS.map(([kind, title]) => [kind, title, "count", ({ object }) => object.resources.find((one) => one.kind === kind)?.entries ?? 0]),
  ["certificate", "certificate", "count", ({ object }) => Date.parse(object.certificateExpiry ?? "9999-01-01")],
  ["error", "last error", "note", ({ object }) => object.lastError ?? ""],
];

function bySeverity(one, other) {
  const rank = (known) => (known.object.origin === "neverRead" ? 0 : (PHASE_RANKS[known.object.phase] ?? 5));
  return STATES.indexOf(lastState(other)) - STATES.indexOf(lastState(one)) || rank(one) - rank(other);
}

function byColumn(sort) {
  const isDown = sort.startsWith("-");
  const value = COLUMNS.find(([name]) => name === sort.replace(/^-/, ""))?.[3];
  if (!value) return bySeverity;
  return (one, other) => {
    const [left, right] = isDown ? [value(other), value(one)] : [value(one), value(other)];
    return typeof left === "string" ? compareNames(left, right) : left === right ? 0 : left - right;
  };
}

/** Returns the rows that the parameters of the URL select: `{rows, folded}`. */
export function selectRows(params, opened) {
  const words = (params.get("q") ?? "").trim().toLowerCase();
  const state = params.get("state");
  const sort = params.get("sort") ?? "";
  const texts = ({ object }) => [object.name, clusterPhase(object), object.lastError ?? ""].join("\n").toLowerCase();
  const order = byColumn(sort);
  // the states on the page are `gone` while meshkeep does not answer: the filter still selects the
  // last known ones
  const matches = (known) => (!words || texts(known).includes(words)) && (!state || [clusterState(known), lastState(known)].includes(state));
  const rows = [...mirror.clusters.values()]
    .filter((known) => known.object.name === opened || matches(known))
    .sort((one, other) => order(one, other) || compareNames(one.object.name, other.object.name));
  const folded = rows.filter((known) => lastState(known) === "good" && known.object.name !== opened);
  const isFolding = !words && !state && !sort && folded.length >= FOLD_MIN;
  if (!isFolding) return { rows, folded: [], canFold: false };
  if (params.get("all")) return { rows, folded: [], canFold: true };
  const hidden = new Set(folded);
  return { rows: rows.filter((known) => !hidden.has(known)), folded, canFold: true };
}

/** Replaces parameters of the URL. */
function change(route, more) {
  go(hash("mesh", route.path, { ...Object.fromEntries(route.params), ...more }), true);
}

/** Button that folds or unfolds the healthy clusters. */
function FoldButton({ route, count }) {
  const isFolded = !route.params.get("all");
  return html`<button type="button" class="fold" aria-expanded=${!isFolded} onClick=${() => change(route, { all: isFolded ? "1" : "" })}>
    ${isFolded ? `show ${plural(count, "healthy cluster")}` : "fold the healthy clusters"}</button>`;
}

/** Row in place of the healthy clusters. */
export function Folded({ route, folded }) {
  const oldest = Math.max(...folded.map((known) => ageOf(known) ?? 0));
  return html`<tr class="fold-row"><td colspan=${COLUMNS.length}><span class="dot is-${clusterState(folded[0])}" aria-hidden="true"></span>
    <${FoldButton} route=${route} count=${folded.length} /> <span class="quiet">oldest ${age(oldest)}</span></td></tr>`;
}

/** Filters above the table. */
export function Filters({ route, canFold }) {
  const sort = route.params.get("sort") ?? "";
  const isSorted = (name) => sort.replace(/^-/, "") === name;
  return html`<form class="filters" aria-label="filters of the clusters" onSubmit=${(event) => event.preventDefault()}>
    <input type="search" name="q" placeholder="filter by cluster, phase or error" aria-label="filter by cluster, phase or error" value=${route.params.get("q") ?? ""}
      onInput=${(event) => change(route, { q: event.target.value })} />
    <label class="narrow">sort by <select onChange=${(event) => change(route, { sort: event.target.value })}>
      <option value="" selected=${!sort}>severity</option>${COLUMNS.map(([name, title]) => html`<option key=${name} value=${name} selected=${isSorted(name)}>${title}</option>`)}</select></label>
    ${canFold && route.params.get("all") && html`<${FoldButton} route=${route} />`}
  </form>`;
}

/** Squares of all clusters, with a legend whose entries filter the table. */
export function Strip({ route }) {
  const all = [...mirror.clusters.values()].sort((one, other) => bySeverity(one, other) || compareNames(one.object.name, other.object.name));
  if (all.length < 2) return null;
  const chosen = route.params.get("state");
  const counts = STATES.map((state) => [state, all.filter((known) => clusterState(known) === state).length]).filter(([state, count]) => count > 0 || state === chosen);
  const words = counts.map(([state, count]) => `${number(count)} ${stateWord(state)}`).join(", ");
  // the squares are a picture: the rows have the links for the keyboard
  const open = ({ target }) => target.dataset.of && go(hash("mesh", [target.dataset.of], Object.fromEntries(route.params)));
  return html`<div class="overview">
    <div class="strip" role="img" aria-label=${`clusters by state: ${words}`} onClick=${open}>
      ${all.map((known) => html`<span key=${known.object.name} class="square is-${clusterState(known)}" data-of=${known.object.name}
        title=${`${known.object.name}: ${clusterPhase(known.object)}, ${ageText(known.object, ageOf(known))}`}></span>`)}
    </div>
    <div class="pills legend" role="group" aria-label="legend: show only clusters of one state">${counts.toReversed().map(([state, count]) => html`<button key=${state} type="button" class="pill"
      aria-pressed=${chosen === state} onClick=${() => change(route, { state: chosen === state ? "" : state })}><span class="square is-${state}" aria-hidden="true"></span>${stateWord(state)} ${number(count)}</button>`)}</div>
  </div>`;
}

/** Text of an age, or the reason why there is none. */
export function ageText(object, seconds) {
  return seconds === undefined ? (object.origin === "neverRead" ? "never read" : "unknown") : age(seconds);
}

/** Head of the table, whose buttons sort it: ascending, descending, by severity. */
export function Head({ route }) {
  const sort = route.params.get("sort") ?? "";
  const next = (name) => (sort === name ? `-${name}` : sort === `-${name}` ? "" : name);
  return html`<thead><tr>${COLUMNS.map(([name, title, look]) => {
    const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined;
    return html`<th key=${name} scope="col" class=${look} aria-sort=${order}><button type="button" class="sort" onClick=${() => change(route, { sort: next(name) })}>${title}<span
      aria-hidden="true">${{ ascending: " ↑", descending: " ↓" }[order] ?? ""}</span></button></th>`;
  })}</tr></thead>`;
}
