// State that all parts share: the process, the clusters and the findings. One stream keeps it up to
// date. A window that may not open a stream polls instead.
//
// Phases arrive by `/v1/events`, and `/v1/status` is requested every few seconds. Counts, ages and
// findings have no events. They are not polled, but read again when the position or a phase has
// changed.

import { ask, breakStreams, follow, query } from "./api.js";
import { setClock } from "./words.js";

/**
 * Kinds in the page's stream. Events of kind `problem` only cause the findings to be read again.
 */
const STREAMED = ["cluster"];
/** Interval of `/v1/status`, in ms: an answer of a few hundred bytes. */
const STATUS_EVERY_MS = 2_000;
/** Maximum time for `/v1/status`, in ms. It only has counters, so it is fast. */
const STATUS_WAIT_MS = 5_000;
/**
 * Minimum interval between reads of the clusters, in ms: for 255 clusters, an answer has 30 KB,
 * compressed.
 */
const CLUSTERS_EVERY_MS = 5_000;
/** Minimum interval between reads of the findings, in ms: a mesh with failures has many events. */
const PROBLEMS_EVERY_MS = 5_000;
/** Maximum number of findings on the page; the API has the others. */
export const PROBLEMS_MAX = 1_000;
/** Time for which a reported age counts as current, in ms: bookmarks report ages every 15 s. */
const AGE_LASTS_MS = 20_000;

export const mirror = {
  /** Last `/v1/status`, and its time. */
  status: null,
  /** Name of the own cluster, if it is known. */
  home: "",
  /** Clusters by name: `{object, at}`. */
  clusters: new Map(),
  /** True once all clusters were read. */
  isRead: false,
  problems: null,
  problemsComplete: true,
  moreProblems: false,
  /** Time at which the findings were read. */
  problemsAt: 0,
  link: { state: "connecting" },
  /** Time of the last data from meshkeep. */
  heardAt: 0,
  /** Version of meshkeep that served this page; after an upgrade the page offers a reload. */
  firstVersion: null,
};

let redraw = () => {};
let stream = null;
const listeners = new Set();

/**
 * Registers a callback for events of clusters and findings, and for a new position. Returns the
 * function that removes it.
 */
export function whenMoved(call) {
  listeners.add(call);
  return () => listeners.delete(call);
}

function moved(what) {
  for (const call of listeners) call(what);
}

/**
 * Returns a function that runs `work` at most once per interval, and once more if it was called in
 * the meantime.
 */
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
      // the link shows that meshkeep does not answer; the last data stays
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

function storeCluster(object, at = Date.now()) {
  mirror.clusters.set(object.name, { object, at });
}

/** Reads the counts and ages of all clusters. */
export const readClusters = atMostEvery(CLUSTERS_EVERY_MS, async () => {
  const answer = await ask(`/v1/clusters${query({ limit: 10_000, meta: "none" })}`);
  const at = Date.now();
  const names = new Set(answer.items.map((object) => object.name));
  for (const name of mirror.clusters.keys()) if (!names.has(name)) mirror.clusters.delete(name);
  for (const object of answer.items) storeCluster(object, at);
  mirror.isRead = true;
  redraw();
});

/** Reads the findings. */
export const readProblems = atMostEvery(PROBLEMS_EVERY_MS, async () => {
  const answer = await ask(`/v1/problems${query({ limit: PROBLEMS_MAX, meta: "none" })}`);
  mirror.problems = answer.items;
  mirror.problemsComplete = answer.complete;
  mirror.moreProblems = answer.nextPageToken !== undefined;
  mirror.problemsAt = Date.now();
  redraw();
  // an incomplete answer becomes complete without an event
  if (!answer.complete) readProblems();
});

function onEvent(event) {
  switch (event.type) {
    case "reset":
      mirror.clusters.clear();
      break;
    case "cluster":
      storeCluster(event.object);
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
      updateAges(event.clusters ?? []);
      // findings about the process have no events
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

function updateAges(ages) {
  const at = Date.now();
  for (const reported of ages) {
    const known = mirror.clusters.get(reported.cluster);
    if (!known) continue;
    // the time in the phase is extrapolated, and the time until the next attempt is dropped because
    // it is unknown
    const { phaseSeconds, nextRetrySeconds, ...object } = known.object;
    const inPhase = phaseSeconds === undefined ? {} : { phaseSeconds: phaseSeconds + (at - known.at) / 1000 };
    storeCluster({ ...object, ...inPhase, ageSeconds: reported.ageSeconds, lastContact: reported.lastContact, lastHeartbeat: reported.lastHeartbeat }, at);
  }
}

/**
 * Returns the current age of a cluster's data: the last reported age while the cluster is live and
 * the page is connected.
 */
export function ageOf({ object, at }) {
  if (object.ageSeconds === undefined) return undefined;
  const reported = Date.now() - at;
  const isCurrent = object.phase === "live" && mirror.link.state === "following" && reported < AGE_LASTS_MS;
  return object.ageSeconds + (isCurrent ? 0 : reported / 1000);
}

/**
 * Returns the number of clusters and of live ones, the oldest age with its cluster, and the numbers
 * of clusters that were never read or have no known age.
 */
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
    // meshkeep answers again, so the stream need not wait for its next attempt
    if (["lost", "loading"].includes(mirror.link.state) && status.loaded) stream?.again();
    const hasMoved = before?.position !== status.position;
    // without a stream, no bookmark reports the ages and causes the findings to be read
    if (hasMoved || mirror.link.state === "surplus") {
      readClusters();
      readProblems();
    }
    if (hasMoved) moved("position");
  } catch (error) {
    // any answer shows that the connection works
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

/** Starts to follow meshkeep. Calls `draw` after each change. */
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
      data() {
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

/** Repeats the refused requests after a sign-in. */
export function restart() {
  readStatus();
  readHome().catch(() => {});
}

/** Reconnects immediately. */
export function reconnect() {
  stream?.again();
  readStatus();
}
