// Asking meshkeep: single answers, and streams of lines that are followed until somebody closes them.
//
// The token lives in this module's memory and nowhere else. Streams are read with `fetch`, because an EventSource cannot send a header.
// Nothing is taken from the browser's cache: what a 304 would save says nothing of how old an answer is.

/** How long a stream may be silent: bookmarks come every 15 s at least, so two of them are missing. */
const SILENCE_MS = 35_000;
/** How long the first and the last attempt to come back wait: a restart takes a second, so that the first few seconds are worth asking often. */
const BACK_OFF_MS = [250, 5_000];
/** Attempts until each waits twice as long as the one before. */
const EAGER_COUNT = 16;
/** A line that is longer than this is no event: the largest object is a global service of some MiB. */
const LINE_MAX = 32 << 20;

/**
 * A hidden tab gives its streams up after so long, and goes on by their positions when it is seen again: over HTTP/1.1 a browser has six connections
 * to a server, of which each tab holds two.
 */
const HIDDEN_MS = 5_000;

/** Characters that a browser acts on instead of showing them: controls, separators of lines, and marks that change the direction of text. */
const ACTED_ON = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
/** Whether a document may have one: JSON writes most controls as escapes, and the others as they are. */
const MAY_ACT = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\\[ubfr]/;

/** A document of meshkeep, with each of those characters written as an escape: other clusters choose names and values. */
function parse(text) {
  if (!MAY_ACT.test(text)) return JSON.parse(text);
  const escape = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  const shown = (one) => one.replace(ACTED_ON, escape);
  return JSON.parse(text, (_, value) => {
    if (typeof value === "string") return shown(value);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
    // names of members too: the keys of labels
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [shown(name), one]));
  });
}

let token = null;
const signedIn = new Set();
/** What ends the present connection of each stream. */
const streams = new Set();
let onRefused = () => {};

/** What meshkeep said instead of an answer, or that it said nothing. */
export class Trouble extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.code = problem.code || "";
    this.retryAfter = problem.retryAfter || 0;
    this.isLate = problem.isLate ?? false;
  }
}

/** Calls back when a request is refused for want of a token. */
export function whenRefused(call) {
  onRefused = call;
}

/** Whether a token was given. */
export function hasToken() {
  return token !== null;
}

/** Somebody found that meshkeep is gone: no stream waits until its own connection says so, which one behind a proxy may never do. */
export function breakStreams() {
  for (const end of [...streams]) end();
}

let hiddenTimer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(breakStreams, HIDDEN_MS);
});

function whenSeen() {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

/** Takes a token, or forgets it, and wakes all who wait for one. */
export function signIn(given) {
  token = given;
  if (token === null) return;
  for (const wake of [...signedIn]) wake();
  signedIn.clear();
}

function headers(accept) {
  return token === null ? { Accept: accept } : { Accept: accept, Authorization: `Bearer ${token}` };
}

async function request(path, accept, signal) {
  const used = token;
  let response;
  try {
    response = await fetch(path, { headers: headers(accept), cache: "no-store", credentials: "same-origin", redirect: "error", signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Trouble(0, { detail: "meshkeep does not answer" });
  }
  if (response.ok) return response;
  const problem = await response.text().then(parse).catch(() => ({}));
  problem.retryAfter = Number(response.headers.get("Retry-After")) || 0;
  // a request that went with the last token says nothing of the present one
  problem.isLate = used !== token;
  if (response.status === 401 && !problem.isLate) onRefused();
  throw new Trouble(response.status, problem);
}

/** One answer as JSON. */
export async function ask(path, signal) {
  return parse(await (await request(path, "application/json", signal)).text());
}

/** The same; `null` where there is no such thing. */
export async function askMaybe(path, signal) {
  return ask(path, signal).catch((error) => {
    if (error.status === 404) return null;
    throw error;
  });
}

/** A query from pairs; lists repeat their name, and what is empty is left out. */
export function query(pairs) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(pairs)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null && one !== "") params.append(name, one);
  }
  const text = params.toString();
  return text && `?${text}`;
}

/**
 * Follows `/v1/events` until it is closed: comes back by itself, at the position of the last event.
 *
 * `on.event(event)` gets each event; `on.link(link)` what the connection does: `{state, since, until, why}` with the states `connecting`,
 * `catchingUp`, `following`, `loading` (meshkeep answers, and reads its store) and `lost`; `on.word()` that something was heard.
 */
export function follow(filter, on) {
  let position = null;
  let closed = false;
  let failures = 0;
  let lostSince = null;
  let abort = new AbortController();
  let wake = () => {};

  const pause = (ms) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  function take(event) {
    const reached = event.position ?? event.meta?.position;
    if (reached) position = reached;
    if (event.type === "reset") position = null;
    if (event.type === "synced") on.link({ state: "following" });
    on.event(event);
  }

  async function read() {
    abort = new AbortController();
    const end = () => abort.abort();
    const asked = { ...filter, ...(position === null ? {} : { after: position }) };
    const response = await request(`/v1/events${query(asked)}`, "application/x-ndjson", abort.signal);
    on.link({ state: filter.snapshot || position !== null ? "catchingUp" : "following" });
    failures = 0;
    lostSince = null;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let silence = setTimeout(() => abort.abort(), SILENCE_MS);
    let rest = "";
    streams.add(end);
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done || closed) return;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENCE_MS);
        on.word?.();
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        if (rest.length > LINE_MAX) return;
        for (const line of lines) if (line) take(parse(line));
      }
    } finally {
      clearTimeout(silence);
      streams.delete(end);
      abort.abort();
    }
  }

  async function run() {
    on.link({ state: "connecting" });
    while (!closed) {
      let wait = 0;
      let why = "the connection ended";
      let state = "lost";
      // one that has no position yet would miss what comes meanwhile
      if (document.hidden && position !== null) {
        await whenSeen();
        [failures, lostSince] = [0, null];
        if (closed) return;
        on.link({ state: "connecting" });
      }
      try {
        await read();
      } catch (error) {
        if (closed) return;
        why = error.message;
        if (error.status === 400) on.refused?.(error);
        if (error.code === "loading") state = "loading";
        if (error.status === 401) {
          // a place in the set until the token comes, unless it came meanwhile
          if (!error.isLate) await new Promise((resolve) => signedIn.add(resolve));
          continue;
        }
        // a store is read in less than the second that it says
        wait = error.code === "loading" ? 0 : error.retryAfter * 1000;
      }
      if (closed) return;
      lostSince ??= Date.now();
      const doubled = Math.min(BACK_OFF_MS[1], BACK_OFF_MS[0] * 2 ** Math.max(0, Math.min(failures - EAGER_COUNT, 10)));
      failures += 1;
      wait = Math.max(wait, doubled * (0.75 + Math.random() / 2));
      on.link({ state, since: lostSince, until: Date.now() + wait, why });
      await pause(wait);
    }
  }

  run();
  return {
    close() {
      closed = true;
      wake();
      abort.abort();
    },
    /** Tries again at once. */
    again: () => wake(),
    get position() {
      return position;
    },
  };
}
