// State of the clusters, of the findings and of meshkeep itself. Each state has one colour and one
// shape, which `is-…` in style.css defines for rows, squares, badges, texts and the icon.

import { ageOf, mirror } from "./mirror.js";
import { number, plural, tone } from "./words.js";

/** States from best to worst. */
export const STATES = ["good", "busy", "gone", "warn", "bad"];

/** Legend of the states of clusters. */
export const STATE_WORDS = { good: "live", busy: "in progress", gone: "unknown", warn: "old data", bad: "lost" };

const IN_PROGRESS = ["waitingForFiles", "connecting", "readingConfig", "waitingForCanary", "listing", "draining"];

/** Returns the worst of some states. */
export function worst(states) {
  return states.reduce((one, other) => (STATES.indexOf(other) > STATES.indexOf(one) ? other : one), "good");
}

/** Returns whether the states on the page are only the last known ones. */
export function isGone() {
  return ["lost", "loading", "hidden"].includes(mirror.link.state);
}

/** Returns the last known state of a cluster, by the severity of the finding about it. */
export function lastState(known) {
  const { object } = known;
  if (object.origin === "neverRead") return object.lastError ? "bad" : "busy";
  if (object.origin === "dump") return "busy";
  if (object.phase === "backingOff") return "bad";
  if (object.phase === "sourceLost") return "warn";
  const own = tone(ageOf(known));
  if (own !== "good") return own;
  return IN_PROGRESS.includes(object.phase) || object.origin !== "live" ? "busy" : "good";
}

/** Returns the state of a cluster; `gone` while meshkeep does not answer. */
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
  const { link, isRead, status, clusters } = mirror;
  if (link.state === "lost") return { state: "bad", words: "meshkeep does not answer" };
  if (link.state === "hidden") return { state: "gone", words: "paused" };
  if (link.state === "loading") return { state: "busy", words: "loading" };
  if (!isRead) return { state: "busy", words: "" };
  if (status?.directory.noClusters) return { state: "bad", words: "no remote cluster" };
  const problems = problemsState();
  const live = [...clusters.values()].filter((known) => lastState(known) === "good").length;
  const words = [live < clusters.size && `${number(live)}/${number(clusters.size)} live`, problems.count > 0 && plural(problems.count, "problem")];
  return { state: worst([clustersState(), problems.state]), words: words.filter(Boolean).join(", ") };
}

/** Shows the state of the page in the title and the icon of the window. */
export function showPageState(title) {
  const { state, words } = pageState();
  document.title = [words, title, "meshkeep"].filter(Boolean).join(" · ");
  document.documentElement.dataset.state = state;
  const icon = document.querySelector("link[rel=icon]");
  const name = state === "good" ? "icon.svg" : `icon-${state}.svg`;
  const address = new URL(name, import.meta.url).pathname;
  // a new address loads the icon again, even if it is the same
  if (new URL(icon.href).pathname !== address) icon.href = address;
}
