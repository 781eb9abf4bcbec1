// What every part shares: the process, the clusters and what is wrong, kept up to date by one stream.
//
// Phases come by `/v1/events`; `/v1/status` is asked every few seconds for the page's own clock. What no event says (counts, ages, findings) is read
// again when the position has moved or a phase has changed, never in a circle of its own.

import { ask, breakStreams, follow, query } from "./api.js";
import { setClock } from "./words.js";

/** What the page's own stream tells of: `problem` beside it where the stream has that kind, which is told by reading them anew. */
const STREAMED = ["cluster"];
/** The page's clock: an answer of some hundred bytes. */
const STATUS_EVERY_MS = 2_000;
/** An answer that takes longer never comes: it is made of counters. */
const STATUS_WAIT_MS = 5_000;
/** Counts of clusters are read again at most so often: for 255 clusters that is an answer of 30 KB, compressed. */
const CLUSTERS_EVERY_MS = 5_000;
/** Findings are read again at most so often: a mesh in trouble has many events. */
const PROBLEMS_EVERY_MS = 5_000;
/** Findings that are held; the API counts the rest. */
export const PROBLEMS_MAX = 1_000;
/** An age that was told longer ago than this is not taken for the present one: bookmarks bring them every 15 s. */
const AGE_LASTS_MS = 20_000;

export const mirror = {
  /** `/v1/status`, and when it came. */
  status: null,
  /** The name of the cluster that this runs in, where it was given. */
  home: "",
  /** Each cluster by name: `{object, at}`. */
  clusters: new Map(),
  /** Whether the clusters were told completely once. */
  isRead: false,
  problems: null,
  problemsComplete: true,
  moreProblems: false,
  /** When problems were read. */
  problemsAt: 0,
  link: { state: "connecting" },
  /** When anything was heard. */
  heardAt: 0,
  /** The version that this page came from; another one asks for a reload. */
  firstVersion: null,
};

let redraw = () => {};
let stream = null;
const listeners = new Set();

/** Calls back after each event of a cluster or finding, and when the position has moved; returns what ends that. */
export function whenMoved(call) {
  listeners.add(call);
  return () => listeners.delete(call);
}

function moved(what) {
  for (const call of listeners) call(what);
}

/** A function that does something at most so often, and once more if it was asked for meanwhile. */
export function atMostEvery(ms, work) {
  let running = false;
  let again = false;
  const run = async () => {
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      await work();
    } catch {
      // the link says that meshkeep is gone; what was read before stays
    }
    setTimeout(() => {
      running = false;
      if (again) {
        again = false;
        run();
      }
    }, ms);
  };
  return run;
}

function takeCluster(object, at = Date.now()) {
  mirror.clusters.set(object.name, { object, at });
}

/** Reads all clusters: their counts and ages. */
export const readClusters = atMostEvery(CLUSTERS_EVERY_MS, async () => {
  const answer = await ask(`/v1/clusters${query({ limit: 10_000, meta: "none" })}`);
  const at = Date.now();
  const names = new Set(answer.items.map((object) => object.name));
  for (const name of mirror.clusters.keys()) if (!names.has(name)) mirror.clusters.delete(name);
  for (const object of answer.items) takeCluster(object, at);
  mirror.isRead = true;
  redraw();
});

/** Reads what is wrong. */
export const readProblems = atMostEvery(PROBLEMS_EVERY_MS, async () => {
  const answer = await ask(`/v1/problems${query({ limit: PROBLEMS_MAX, meta: "none" })}`);
  mirror.problems = answer.items;
  mirror.problemsComplete = answer.complete;
  mirror.moreProblems = answer.nextPageToken !== undefined;
  mirror.problemsAt = Date.now();
  redraw();
  // what is not complete will be, and no event says when
  if (!answer.complete) readProblems();
});

function onEvent(event) {
  switch (event.type) {
    case "reset":
      mirror.clusters.clear();
      break;
    case "cluster":
      takeCluster(event.object);
      readProblems();
      moved("cluster");
      break;
    case "upsert":
    case "delete":
      if (event.kind === "problem") readProblems();
      if (event.kind === "cluster" && event.type === "delete") {
        mirror.clusters.delete(event.key.split("/").pop());
        readProblems();
      }
      break;
    case "synced":
    case "bookmark":
      takeAges(event.clusters ?? []);
      // what is wrong with the process itself, no event tells of
      readProblems();
      if (event.type === "synced") {
        mirror.isRead = true;
        readClusters();
        moved("synced");
      }
      break;
  }
  redraw();
}

function takeAges(ages) {
  const at = Date.now();
  for (const told of ages) {
    const known = mirror.clusters.get(told.cluster);
    if (!known) continue;
    // what else was told goes on by itself from when it was: time in the phase grows, the time until the next attempt is unknown
    const { phaseSeconds, nextRetrySeconds, ...object } = known.object;
    const sofar = phaseSeconds === undefined ? {} : { phaseSeconds: phaseSeconds + (at - known.at) / 1000 };
    takeCluster({ ...object, ...sofar, ageSeconds: told.ageSeconds, lastContact: told.lastContact, lastHeartbeat: told.lastHeartbeat }, at);
  }
}

/** How old what a cluster has is at this moment. While it is live and the page follows, that is what was told last. */
export function ageOf({ object, at }) {
  if (object.ageSeconds === undefined) return undefined;
  const told = Date.now() - at;
  const holds = object.phase === "live" && mirror.link.state === "following" && told < AGE_LASTS_MS;
  return object.ageSeconds + (holds ? 0 : told / 1000);
}

/** How many are live of how many, the oldest age with its cluster, and how many were never read or have no age that is known. */
export function summary() {
  let live = 0;
  let oldest;
  let never = 0;
  let unknown = 0;
  for (const known of mirror.clusters.values()) {
    if (known.object.phase === "live" && known.object.origin === "live") live += 1;
    const age = ageOf(known);
    if (known.object.origin === "neverRead") never += 1;
    else if (age === undefined) unknown += 1;
    else if (oldest === undefined || age > oldest.age) oldest = { age, cluster: known.object.name };
  }
  return { live, count: mirror.clusters.size, oldest, never, unknown };
}

let statusTimer = 0;

async function readStatus() {
  clearTimeout(statusTimer);
  try {
    const status = await ask("/v1/status", AbortSignal.timeout(STATUS_WAIT_MS));
    const before = mirror.status;
    mirror.status = status;
    setClock(Date.parse(status.now));
    mirror.heardAt = Date.now();
    mirror.firstVersion ??= status.version;
    // it is back before the stream's next attempt
    if (["lost", "loading"].includes(mirror.link.state) && status.loaded) stream?.again();
    if (before?.position !== status.position) {
      readClusters();
      readProblems();
      moved("position");
    }
  } catch (error) {
    // an answer, whatever it says, is no sign of a dead connection
    if (!error.status && Date.now() - mirror.heardAt > STATUS_EVERY_MS) breakStreams();
  }
  redraw();
  if (!document.hidden) statusTimer = setTimeout(readStatus, STATUS_EVERY_MS);
}

async function readHome() {
  const config = await ask("/v1/config");
  mirror.home = config.items.find((item) => item.name === "cluster-name")?.values[0] ?? "";
  redraw();
}

/** Begins to follow; `draw` is called whenever something is new. */
export function start(draw) {
  redraw = draw;
  stream = follow(
    { kind: STREAMED, snapshot: true },
    {
      event: onEvent,
      link(link) {
        mirror.link = link;
        redraw();
      },
      word() {
        mirror.heardAt = Date.now();
      },
    },
  );
  readStatus();
  readHome().catch(() => {});
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) readStatus();
  });
}

/** After a sign-in: what was refused is asked again. */
export function restart() {
  readStatus();
  readHome().catch(() => {});
}

/** Tries at once to come back. */
export function again() {
  stream?.again();
  readStatus();
}
