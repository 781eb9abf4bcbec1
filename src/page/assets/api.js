// Client of meshkeep's API: single requests, and streams of lines that are followed until they are
// closed.
//
// The token is only in this module's memory, except that of a link (`view_token.js`). Streams use
// `fetch`, because an EventSource cannot send a header. The browser's cache is not used: a cached
// answer would have the age of its first request.

import { surplus } from "./windows.js";

/**
 * Maximum silence of a stream, in ms: two bookmarks are missing then, because one arrives at least
 * every 15 s.
 */
const SILENCE_MS = 35_000;
/**
 * Wait before the first reconnect and before later ones, in ms. A restart takes a second, so the
 * first attempts are frequent.
 */
const BACK_OFF_MS = [250, 5_000];
/** Number of attempts after which the wait doubles each time. */
const EAGER_COUNT = 16;
/** Maximum length of a line, in characters. The largest object, a global service, has a few MiB. */
const LINE_MAX = 32 << 20;

/**
 * Time after which a hidden tab closes its streams, in ms; it continues from their positions when
 * it is visible again. Over HTTP/1.1 a browser opens six connections to a server, and each tab uses
 * two.
 */
const HIDDEN_MS = 5_000;

/** Interval in which a window that may not open streams tries again, in ms. */
const SURPLUS_MS = 1_000;

/**
 * Characters that a browser interprets instead of showing them: control characters, line
 * separators, and marks that change the direction of text.
 */
const CONTROL_CHARACTERS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
/**
 * Matches documents that may contain such a character: as an escape, or unescaped, because JSON
 * requires escapes only for C0.
 */
const MAY_HAVE_CONTROL_CHARACTERS = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\\[ubfr]/;

/**
 * Parses a document and replaces control characters by escapes, because other clusters choose names
 * and values.
 */
function parse(text) {
  if (!MAY_HAVE_CONTROL_CHARACTERS.test(text)) return JSON.parse(text);
  const escape = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  const escaped = (string) => string.replace(CONTROL_CHARACTERS, escape);
  return JSON.parse(text, (_, value) => {
    if (typeof value === "string") return escaped(value);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
    // also names of members, which can be label keys
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [escaped(name), member]));
  });
}

let token = null;
/** Functions that wake the streams that wait for a token. */
const tokenWaiters = new Set();
/** Functions that close the current connection of each stream. */
const streams = new Set();
let onRefused = () => {};

/** Error of a request: meshkeep's problem document, or status 0 if it did not answer. */
export class RequestError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.code = problem.code || "";
    this.retryAfter = problem.retryAfter || 0;
    this.isLate = problem.isLate ?? false;
  }
}

/** Registers a callback for requests that are refused because a token is missing. */
export function whenRefused(call) {
  onRefused = call;
}

/** Returns whether there is a token. */
export function hasToken() {
  return token !== null;
}

/**
 * Closes all streams when a request shows that meshkeep does not answer. A connection through a
 * proxy may never report this.
 */
export function breakStreams() {
  for (const end of [...streams]) end();
}

let hiddenTimer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(breakStreams, HIDDEN_MS);
});

function untilVisible() {
  return new Promise((resolve) => {
    const check = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", check);
      resolve();
    };
    document.addEventListener("visibilitychange", check);
    check();
  });
}

/** Sets or clears the token, and wakes the streams that wait for one. */
export function signIn(newToken) {
  token = newToken;
  if (token === null) return;
  for (const wake of [...tokenWaiters]) wake();
  tokenWaiters.clear();
}

function headers(accept) {
  return token === null ? { Accept: accept } : { Accept: accept, Authorization: `Bearer ${token}` };
}

/** Returns the number of open streams. */
export function streamCount() {
  return streams.size;
}

async function request(path, accept, signal, body) {
  const used = token;
  let response;
  try {
    const sent = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
    const type = body === undefined ? {} : { "Content-Type": "application/json" };
    response = await fetch(path, { headers: { ...headers(accept), ...type }, cache: "no-store", credentials: "same-origin", redirect: "error", signal, ...sent });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError(0, { detail: "meshkeep does not answer" });
  }
  if (response.ok) return response;
  const problem = await response.text().then(parse).catch(() => ({}));
  problem.retryAfter = Number(response.headers.get("Retry-After")) || 0;
  // a request with an older token says nothing about the current one
  problem.isLate = used !== token;
  if (response.status === 401 && !problem.isLate) onRefused();
  throw new RequestError(response.status, problem);
}

/** Returns one answer as JSON. With a body, the request is a `POST`. */
export async function ask(path, signal, body) {
  return parse(await (await request(path, "application/json", signal, body)).text());
}

/** Like `ask`, but returns `null` for status 404. */
export async function askMaybe(path, signal) {
  return ask(path, signal).catch((error) => {
    if (error.status === 404) return null;
    throw error;
  });
}

/** Returns a query string from pairs. Lists repeat their name, and empty values are omitted. */
export function query(pairs) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(pairs)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null && one !== "") params.append(name, one);
  }
  const text = params.toString();
  return text && `?${text}`;
}

/**
 * Follows `/v1/events` until it is closed. Reconnects by itself, at the position of the last event.
 *
 * Calls `on.event(event)` for each event, `on.data()` for any data, and `on.link(link)` with the
 * state of the connection: `{state, since, until, why}`. The states are `connecting`, `catchingUp`,
 * `following`, `loading` (meshkeep answers, but loads its store), `hidden` (the window is not
 * visible), `surplus` (other windows use the connections) and `lost`.
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

  function handle(event) {
    const eventPosition = event.position ?? event.meta?.position;
    if (eventPosition) position = eventPosition;
    if (event.type === "reset") position = null;
    if (event.type === "synced") on.link({ state: "following" });
    on.event(event);
  }

  async function read() {
    abort = new AbortController();
    const end = () => abort.abort();
    const parameters = { ...filter, ...(position === null ? {} : { after: position }) };
    const response = await request(`/v1/events${query(parameters)}`, "application/x-ndjson", abort.signal);
    on.link({ state: filter.snapshot || position !== null ? "catchingUp" : "following" });
    failures = 0;
    lostSince = null;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let silence = setTimeout(() => abort.abort(), SILENCE_MS);
    let partialLine = "";
    streams.add(end);
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done || closed) return;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENCE_MS);
        on.data?.();
        const lines = (partialLine + value).split("\n");
        partialLine = lines.pop();
        if (partialLine.length > LINE_MAX) return;
        for (const line of lines) if (line) handle(parse(line));
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
      // without a position, the stream would miss the changes in between
      if (document.hidden && position !== null) {
        on.link({ state: "hidden" });
        await untilVisible();
        [failures, lostSince] = [0, null];
        if (closed) return;
        on.link({ state: "connecting" });
      }
      if (surplus()) {
        // a hidden window does not poll either
        on.link({ state: document.hidden ? "hidden" : "surplus" });
        await pause(SURPLUS_MS);
        continue;
      }
      try {
        await read();
      } catch (error) {
        if (closed) return;
        why = error.message;
        if (error.status === 400) on.refused?.(error);
        if (error.code === "loading") state = "loading";
        if (error.status === 401) {
          // waits until there is a token, unless it was set in the meantime
          if (!error.isLate) await new Promise((resolve) => tokenWaiters.add(resolve));
          continue;
        }
        // the store loads faster than the second in Retry-After
        wait = error.code === "loading" ? 0 : error.retryAfter * 1000;
      }
      if (closed) return;
      // the window closed its own stream
      if (surplus() || (document.hidden && position !== null)) continue;
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
    /** Reconnects immediately. */
    again: () => wake(),
    get position() {
      return position;
    },
  };
}
