// Texts for ages, numbers, phases and keys. Without state, except for the clock offset.

const numbers = new Intl.NumberFormat("en");

/** Time by which meshkeep's clock is ahead of the browser's, in milliseconds. */
let ahead = 0;

/** Sets the clock offset from meshkeep's current time. */
export function setClock(now) {
  if (Number.isFinite(now)) ahead = now - Date.now();
}

/** Returns a number with thousands separators. */
export function number(value) {
  return numbers.format(value);
}

/** Returns a count with its noun: `1 backend`, `2 backends`. */
export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** Returns a duration with two significant digits. */
export function age(seconds) {
  if (seconds === undefined || seconds === null) return "—";
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${number(Math.round(seconds / 86_400))} d`;
}

/** Returns the state of data by its age: up to 60 s, up to 15 min, and above. */
export function tone(seconds) {
  if (seconds === undefined || seconds === null) return "warn";
  if (seconds <= 60) return "good";
  return seconds <= 900 ? "warn" : "bad";
}

const collator = new Intl.Collator("en", { numeric: true });

/** Compares names as people order them: `node-2` is before `node-10`. */
export function compareNames(one, other) {
  return collator.compare(one, other) || (one < other ? -1 : one > other ? 1 : 0);
}

/** Returns the seconds since a time of meshkeep's clock. */
export function since(time) {
  return time === undefined ? undefined : Math.max(0, (Date.now() + ahead - Date.parse(time)) / 1000);
}

/** Returns the current time of meshkeep's clock, in milliseconds. */
export function now() {
  return Date.now() + ahead;
}

/** Returns the date and the time of day, in the time zone of the browser. */
export function dateTime(time) {
  const date = new Date(time);
  const day = [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, "0"));
  return `${day.join("-")} ${clock(time)}`;
}

/** Returns a time as text for `at=`: RFC 3339 in UTC. */
export function utc(time) {
  return new Date(time).toISOString().replace(".000Z", "Z");
}

/** Returns the time of day. */
export function clock(time) {
  const date = new Date(time);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

const PHASES = {
  waitingForFiles: "waiting for files",
  connecting: "connecting",
  readingConfig: "reading config",
  waitingForCanary: "waiting for canary",
  listing: "listing",
  live: "live",
  sourceLost: "source lost",
  backingOff: "backing off",
  draining: "draining",
};

/** Returns the text of a phase. */
export function phase(name) {
  return PHASES[name] ?? name ?? "unknown";
}

/** Returns `certificateExpiring` as `certificate expiring`. Abbreviations stay unchanged. */
export function spaced(name) {
  return name.replace(/([a-z])([A-Z])/g, (_, before, after) => `${before} ${after}`).replace(/\b[A-Z](?![A-Z])/g, (one) => one.toLowerCase());
}

/** Returns the days until a time, negative for a time in the past. */
export function daysUntil(time) {
  return Math.floor((Date.parse(time) - Date.now() - ahead) / 86_400_000);
}

const KEY = /^cilium\/cache\/([a-z]+)\/v1\/([^/]+)\/(.+)$/;

/** Parses a key in cache form: `{kind, cluster, name}`. */
export function ofKey(key) {
  const [, kind, cluster, rest] = KEY.exec(key ?? "") ?? [];
  if (!kind) return null;
  const derived = kind === "nodes" && rest.includes("#");
  if (derived) return { kind: "ipcache", cluster, name: rest.slice(rest.indexOf("#") + 1) };
  const name = kind === "identities" ? rest.replace(/^id\//, "") : rest;
  const kinds = { nodes: "node", services: "service", identities: "identity", ip: "ipcache", serviceexports: "serviceExport", endpointslices: "endpointSlice" };
  return { kind: kinds[kind] ?? kind, cluster, name };
}

/** Returns the URL of the page that shows a key. */
export function linkOfKey(key) {
  const parsed = ofKey(key);
  if (!parsed) return null;
  switch (parsed.kind) {
    case "ipcache":
      return `#/explain/${encodeURIComponent(parsed.name.split("/")[0])}`;
    case "service":
    case "serviceExport":
      return `#/services/${parsed.name.split("/").map(encodeURIComponent).join("/")}`;
    case "node":
      return `#/find/${encodeURIComponent(`${parsed.cluster}/${parsed.name}`)}`;
    case "identity":
      return `#/find/${parsed.name}`;
    default:
      return null;
  }
}

/**
 * Returns the text if it is an IPv4 address or looks like an IPv6 address (at least two colons),
 * otherwise null.
 */
export function address(text) {
  const four = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(text);
  if (four) return four.slice(1).every((part) => Number(part) < 256) ? text : null;
  return /^[0-9a-f:]*:[0-9a-f.:]*:[0-9a-f.:]*$/i.test(text) && text.length < 46 ? text.toLowerCase() : null;
}

/** Returns labels as `key=value`, with the application's own labels first. */
export function labels(map) {
  const texts = Object.entries(map ?? {}).map(([key, value]) => (value === "" ? key : `${key}=${value}`));
  return texts.sort((one, other) => /io\.(cilium|kubernetes)/.test(one) - /io\.(cilium|kubernetes)/.test(other) || (one < other ? -1 : 1));
}
