// Connections of the other windows of this page. Over HTTP/1.1 a browser opens six connections to
// one server, and each visible window uses one or two for its streams. The oldest windows may use
// four of them; newer windows poll, so that requests never wait for a connection.

import { breakStreams, streamCount } from "./api.js";

/** Maximum number of connections that the streams of older windows use. */
const STREAMS_MAX = 4;
/** Interval of messages to the other windows, in ms. */
const ANNOUNCE_EVERY_MS = 2_000;
/** Time after which a silent window is forgotten, in ms. */
const FORGET_MS = 5_000;

const channel = "BroadcastChannel" in window ? new BroadcastChannel("meshkeep") : null;
const own = { name: Math.random().toString(36).slice(2), since: Date.now() };
/** Other windows by their random name: `{since, count, at}`. */
const others = new Map();

function announce(isNew = false) {
  channel?.postMessage({ ...own, count: streamCount(), isNew });
  if (surplus()) breakStreams();
}

if (channel) {
  channel.onmessage = ({ data }) => {
    others.set(data.name, { ...data, at: Date.now() });
    // a new window must know the others before it has read its first answer
    if (data.isNew) announce();
    else if (surplus()) breakStreams();
  };
  setTimeout(announce, 0, true);
  setInterval(announce, ANNOUNCE_EVERY_MS);
}

function isLimited() {
  const protocol = performance.getEntriesByType("navigation")[0]?.nextHopProtocol ?? "";
  return !/^h[23]/.test(protocol);
}

/**
 * Returns `{windows, count}` of the older windows while their streams use the connections that
 * streams may use, otherwise null.
 */
export function surplus() {
  if (!channel || !isLimited()) return null;
  for (const [name, { at }] of others) if (Date.now() - at > FORGET_MS) others.delete(name);
  const older = [...others.values()].filter(({ since, name, count }) => count > 0 && (since - own.since || (name < own.name ? -1 : 1)) < 0);
  const count = older.reduce((sum, one) => sum + one.count, 0);
  return count >= STREAMS_MAX ? { windows: older.length, count } : null;
}
