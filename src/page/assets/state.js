// State of the clusters, of the findings and of meshkeep itself. Each state has one colour and one
// shape, which `is-…` in style.css defines for rows, squares, badges, texts and the icon.

import { ageOf, mirror, summary } from "./mirror.js";
import { number, phase, plural, tone } from "./words.js";

/** States from best to worst. */
export const STATES = ["good", "busy", "gone", "warn", "bad"];

const STATE_WORDS = { good: "live", busy: "in progress", gone: "unknown", warn: "old data", bad: "lost" };

/**
 * Icons of the window by state. They are loaded at the start, because meshkeep cannot send them
 * once it does not answer.
 */
const icons = Object.fromEntries(
  STATES.map((state) => {
    const icon = new Image();
    icon.src = new URL(state === "good" ? "icon.svg" : `icon-${state}.svg`, import.meta.url).href;
    return [state, icon];
  }),
);

const IN_PROGRESS = ["waitingForFiles", "connecting", "readingConfig", "waitingForCanary", "listing", "draining"];

/** Returns the worst of some states. */
export function worst(states) {
  return states.reduce((one, other) => (STATES.indexOf(other) > STATES.indexOf(one) ? other : one), "good");
}

/** Returns whether the states on the page are only the last known ones. */
export function isGone() {
  return ["lost", "loading", "hidden"].includes(mirror.link.state);
}

/** Returns whether the data of a cluster comes from a dump, which never changes. */
export function isFromDump(object) {
  return object.origin === "dump" || mirror.status?.dump !== undefined;
}

/** Returns the text of a cluster's phase. Clusters of a dump have no phase. */
export function clusterPhase(object) {
  return isFromDump(object) ? "dump" : phase(object.phase);
}

/** Returns the word of a state of clusters, for the legend. */
export function stateWord(state) {
  return state === "gone" && mirror.status?.dump ? "dump" : STATE_WORDS[state];
}

/**
 * Returns the last known state of a cluster, by the severity of the finding about it. It is `gone`
 * for a cluster of a dump, whose source is unknown.
 */
export function lastState(known) {
  const { object } = known;
  if (isFromDump(object)) return "gone";
  if (object.origin === "neverRead") return object.lastError ? "bad" : "busy";
  if (object.phase === "backingOff") return "bad";
  if (object.phase === "sourceLost") return "warn";
  const own = tone(ageOf(known));
  if (own !== "good") return own;
  return IN_PROGRESS.includes(object.phase) || object.origin !== "live" ? "busy" : "good";
}

/** Returns the state of a cluster: `gone` while meshkeep does not answer. */
export function clusterState(known) {
  return isGone() ? "gone" : lastState(known);
}

/** Returns the state of the worst cluster. */
export function clustersState() {
  return isGone() ? "gone" : worst([...mirror.clusters.values()].map(lastState));
}

/** Returns the number of findings that need attention, and the state of the worst one. */
export function problemsState() {
  const severities = (mirror.problems ?? []).map((one) => one.severity).filter((severity) => severity !== "info");
  const state = isGone() ? "gone" : severities.includes("critical") ? "bad" : severities.length > 0 ? "warn" : "good";
  return { state, count: severities.length };
}

/** Returns the state of the whole page and its words: for the title, the logo and the icon. */
export function pageState() {
  const { link, isRead, status } = mirror;
  if (link.state === "lost") return { state: "bad", words: "meshkeep does not answer" };
  if (link.state === "hidden") return { state: "gone", words: "paused" };
  if (link.state === "loading") return { state: "busy", words: "loading" };
  if (!isRead) return { state: "busy", words: "" };
  if (status?.directory.noClusters) return { state: "bad", words: "no remote cluster" };
  const problems = problemsState();
  const { live, count } = summary();
  const clusters = status?.dump ? "dump" : live < count && `${number(live)}/${number(count)} live`;
  const words = [clusters, problems.count > 0 && plural(problems.count, "problem")];
  return { state: worst([clustersState(), problems.state]), words: words.filter(Boolean).join(", ") };
}

/** Shows the state of the page in the title and the icon of the window. */
export function showPageState(title) {
  const { state, words } = pageState();
  document.title = [words, title, "meshkeep"].filter(Boolean).join(" · ");
  const link = document.querySelector("link[rel=icon]");
  // setting the address loads the icon again, even if it is the same
  if (link.href !== icons[state].src) link.href = icons[state].src;
}
