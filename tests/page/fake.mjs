// A simulated meshkeep with any number of clusters in every possible state, and with changes at any
// rate. The page and its assets come from a real meshkeep (`upstream`), or from the source tree:
//   node tests/page/fake.mjs CLUSTERS CHANGES_PER_SECOND PORT [UPSTREAM [calm | warned | dump]]
// With `calm` all clusters are live and there is no finding, with `warned` there are warnings, and
// with `dump` all clusters come from a dump, as in `meshkeep load`.

import { readFileSync, readdirSync } from "node:fs";
import { createServer, request } from "node:http";
import { fileURLToPath } from "node:url";

const ASSETS = fileURLToPath(new URL("../../src/page/assets/", import.meta.url));
const TYPES = { js: "text/javascript", css: "text/css", svg: "image/svg+xml", html: "text/html" };
const NAMES = ["paris", "tokyo", "osaka", "lima", "oslo", "accra", "delhi", "quito", "turin", "perth", "cairo", "miami", "seoul", "dakar", "izmir", "leeds"];
const KINDS = ["endpointSlice", "identity", "ipcache", "node", "serviceExport", "service"];

/** Age of the dump, in s. */
const DUMP_AGE_S = 21 * 86_400;

const nameOf = (index) => (index < NAMES.length ? NAMES[index] : `${NAMES[index % NAMES.length]}-${Math.floor(index / NAMES.length) + 1}`);
const ago = (seconds) => new Date(Date.now() - seconds * 1000).toISOString();

/** Returns a cluster whose state depends on its index: without `calm`, five of every 41 are not live. */
/** Impact of any cluster: services with different effects, an identity and a CIDR. */
function impact() {
  const service = (name, effect, local) => ({ kind: "service", effect, namespace: "shop", name, lostBackends: 2, remainingBackends: 1, affinities: { none: effect, local, remote: effect } });
  return [service("cart", "unnoticed", "unnoticed"), service("checkout", "losesAll", "losesAll"), service("front", "fallsBack", "unnoticed"), { kind: "identity", effect: "onlyHere", identity: 131_331, labels: {} }, { kind: "cidr", effect: "onlyHere", prefix: "10.2.0.0/16", identity: 2 }];
}

function cluster(index, calm) {
  const name = nameOf(index);
  const state = calm || index % 41 > 6 ? "live" : ["live", "live", "backingOff", "listing", "sourceLost", "connecting", "restored"][index % 41];
  const counts = { endpointSlice: index % 3 ? 0 : 12, identity: 310 - (index % 50), ipcache: 12_204 - index, node: 48 + (index % 9), serviceExport: index % 3 ? 0 : 4, service: 120 - (index % 17) };
  const age = { live: 0.3 + ((index * 7) % 40) / 10, restored: 2.1, backingOff: 840 + index, listing: 0.4, sourceLost: 65, connecting: undefined }[state];
  const isOld = state === "backingOff";
  const resources = KINDS.map((kind) => ({
    kind,
    entries: state === "connecting" ? 0 : state === "listing" && kind === "ipcache" ? 63_744 : counts[kind],
    restored: isOld || (state === "restored" && kind === "ipcache") ? counts[kind] : 0,
    ...(state === "sourceLost" && kind === "service" ? { held: 7 } : {}),
    synced: state === "live",
    expected: state === "listing" && kind === "ipcache" ? 120_000 : counts[kind],
    origin: state === "connecting" ? "neverRead" : isOld || state === "restored" ? "restored" : "live",
    ...(state === "connecting" ? {} : { lastEvent: ago(index % 90), revision: 10_000 + index }),
  }));
  return {
    name,
    clusterID: index + 1,
    ...(index === 0 ? { local: true } : {}),
    phase: state === "restored" ? "live" : state,
    phaseSeconds: state === "live" ? 86_400 * 3 : 847,
    origin: state === "connecting" ? "neverRead" : isOld || state === "restored" ? "restored" : "live",
    ...(age === undefined ? {} : { lastContact: ago(age), ageSeconds: age }),
    configRetrieved: state !== "connecting",
    config: { id: index + 1, syncedCanaries: true, cached: index % 2 === 1, maxConnectedClusters: 255 },
    etcdClusterID: "dda73e4818f25b05",
    endpoint: `https://${name}.mesh.cilium.io:2379`,
    resources,
    failures: isOld ? 12 : 0,
    ...(isOld ? { lastError: "connection refused", lastErrorTime: ago(20), nextRetrySeconds: 21 } : {}),
    ...(state === "connecting" ? { lastError: "DNS: no such name", lastErrorTime: ago(3) } : {}),
    certificateExpiry: new Date(Date.now() + 86_400_000 * (index % 19 === 1 ? 12 : index % 83 === 4 ? 3 : 212)).toISOString(),
  };
}

/** Returns a cluster of a dump that is three weeks old. */
function dumpedCluster(index) {
  const { phase, phaseSeconds, config, etcdClusterID, endpoint, certificateExpiry, ...one } = cluster(index, true);
  const resources = one.resources.map(({ kind, entries }) => ({ kind, entries, restored: entries, synced: false, origin: "dump" }));
  return { ...one, origin: "dump", lastContact: ago(DUMP_AGE_S), ageSeconds: DUMP_AGE_S, configRetrieved: false, resources };
}

function problems(clusters) {
  const items = clusters.filter((one) => one.phase === "backingOff").map((one) => ({
    id: `clusterUnreachable/${one.name}`, kind: "clusterUnreachable", severity: "critical", clusters: [one.name], since: ago(840),
    detail: `${one.name} cannot be reached: connection refused`, advice: `see whether the etcd of ${one.name} runs and is exposed: meshkeep doctor ${one.name} says which step fails`,
  }));
  if (clusters.length === 0) return [];
  items.push(
    { id: "danglingIdentity/tokyo/99999", kind: "danglingIdentity", severity: "warning", clusters: ["tokyo"], since: ago(7200), count: 14, key: "cilium/cache/ip/v1/tokyo/10.2.1.99",
      detail: "tokyo has addresses with identity 99999, but does not announce that identity: policies by label do not match them", advice: "check whether its operator deleted an identity that is still in use" },
    { id: "certificateExpiring/tokyo", kind: "certificateExpiring", severity: "warning", clusters: ["tokyo"], since: ago(86_400), detail: "the client certificate of tokyo ends in 12 days", advice: "renew it: cilium clustermesh connect writes a new one" },
    { id: "duplicateAddress/10.2.1.9", kind: "duplicateAddress", severity: "warning", clusters: ["osaka", "tokyo"], since: ago(60), key: "cilium/cache/ip/v1/osaka/10.2.1.9", detail: "osaka and tokyo both announce 10.2.1.9/32: an agent uses the one that it heard last", advice: "see whether their pod CIDRs overlap" },
    { id: "heldEntries/lima", kind: "heldEntries", severity: "info", clusters: ["lima"], since: ago(65), count: 7, detail: "7 services of lima are held: its source lost them with a lease", advice: "nothing: they go when the source says so, or after 15 minutes" },
  );
  return items;
}

function explanation(ip) {
  const labels = { "k8s:app": "cart", "k8s:io.kubernetes.pod.namespace": "shop", "k8s:io.cilium.k8s.policy.cluster": "tokyo", "k8s:io.cilium.k8s.policy.serviceaccount": "cart" };
  const meta = { cluster: "tokyo", origin: "live", phase: "live", lastContact: ago(1.1), ageSeconds: 1.1, position: position(), oldestAgeSeconds: 845, liveSources: 250, sourceCount: 255 };
  const pod = { host: true, identity: 131_331, hostIP: "172.18.2.1", namespace: "shop", podName: "cart-7f9c4d-x2x9q", serviceAccount: "cart", source: "clustermesh", labels, nodeName: "tokyo-w2" };
  if (!ip.startsWith("10.2.")) {
    return { ip, match: null, entries: [], services: [], problems: [], complete: true, meta: { ...meta, cluster: undefined },
      hints: [{ kind: "podCIDR", detail: `in pod CIDR 10.9.1.0/24 of node perth/perth-w1: a pod of that node could have it, but no cluster announces it; check that its endpoint is ready`, clusters: ["perth"] },
        { kind: "deleted", detail: `osaka had ${ip}/32 until 5 minutes ago`, time: ago(300), clusters: ["osaka"] }, { kind: "neverRead", detail: "accra was never read: its addresses are not known", clusters: ["accra"] }] };
  }
  const match = { prefix: `${ip}/32`, cluster: "tokyo", ...pod };
  const network = ip.split(".").slice(0, 3).join(".");
  return {
    ip, match,
    entries: [
      { ...match, verdict: "wins", reason: "the most specific entry that covers the address", origin: "live" },
      { ...match, cluster: "osaka", identity: 196_700, podName: "", namespace: "", nodeName: "osaka-w1", verdict: "outranked", reason: "tokyo's entry for the same prefix is newer", origin: "restored" },
      { prefix: `${network}.0/24`, host: false, cluster: "tokyo", identity: 2, hostIP: "172.18.2.1", source: "node", labels: { "reserved:world": "" }, nodeName: "tokyo-w2", verdict: "lessSpecific", reason: `${ip}/32 is more specific`, origin: "live" },
      { prefix: "10.0.0.0/8", host: false, cluster: "paris", identity: 16_777_217, source: "clustermesh", labels: {}, verdict: "lessSpecific", reason: `${ip}/32 is more specific`, origin: "live" },
    ],
    node: { name: "tokyo-w2", cluster: "tokyo", addresses: [{ type: "InternalIP", ip: "172.18.2.1" }, { type: "CiliumInternalIP", ip: `${network}.10` }], ipv4PodCIDR: `${network}.0/24`, encryptionKey: 7, labels: { "topology.kubernetes.io/zone": "zone-a" } },
    services: [{ kind: "service", cluster: "tokyo", namespace: "shop", name: "cart" }, { kind: "service", cluster: "tokyo", namespace: "shop", name: "web" }],
    problems: [{ id: `duplicateAddress/${ip}`, severity: "warning", kind: "duplicateAddress", clusters: ["osaka", "tokyo"], detail: "osaka announces the same address", advice: "see whether their pod CIDRs overlap" }],
    complete: true, meta,
  };
}

const START_MS = Date.now();

/** The versions of any address: three pods in two clusters, and before them another one. */
function versions(ip, pageToken) {
  const ago = (seconds) => new Date(START_MS - seconds * 1000).toISOString();
  const version = (name, identity, hostIP, podName, from, rest = {}) => ({
    kind: "ipcache", key: `cilium/cache/ip/v1/${name}/${ip}`, from,
    object: { prefix: `${ip}/32`, host: true, cluster: name, identity, hostIP, namespace: "shop", podName, source: "clustermesh" }, ...rest,
  });
  const between = { changedBetween: [ago(7_200), ago(6_600)] };
  const oldest = version("osaka", 131_330, "172.18.3.1", "cart-0", { firstSeenAt: ago(90_000) }, { to: { changedAt: ago(80_000) }, ended: "deleted" });
  if (pageToken) return { items: [oldest], complete: true, gaps: [], since: ago(100_000), position: position() };
  // the kinds of a cluster are not lost at exactly the same time
  const gap = (kind, earlier) => ({ cluster: "tokyo", kind, from: ago(7_200 + earlier), to: ago(6_600 + earlier) });
  return {
    items: [
      version("tokyo", 131_331, "172.18.2.1", "cart-3", { changedAt: ago(1_800) }),
      version("tokyo", 131_330, "172.18.2.2", "cart-2", between, { to: { changedAt: ago(1_800) }, ended: "updated" }),
      version("osaka", 131_330, "172.18.3.1", "cart-1", { changedAt: ago(50_000) }, { to: between, ended: "clusterRemoved" }),
    ],
    complete: false, gaps: [gap("ipcache", 0), gap("node", 0.9), { from: ago(60_000), to: ago(55_000) }], since: ago(100_000), nextPageToken: "more", position: position(),
  };
}

/** Returns the explanation of an address at an earlier time, which may mean two versions. */
function explanationAt(ip, at) {
  const time = /^\d+m$/.test(at) ? ago(parseInt(at, 10) * 60) : at;
  const newest = explanation(ip);
  const { items, gaps } = versions(ip);
  const isIn = ({ from, to }) => Date.parse(from) <= Date.parse(time) && Date.parse(time) < Date.parse(to);
  const current = gaps.filter(isIn);
  const start = ({ from }) => from.changedAt ?? from.changedBetween?.[1] ?? from.firstSeenAt;
  const match = items.find((one) => Date.parse(start(one)) <= Date.parse(time))?.object ?? null;
  const { services, problems, complete, hints, ...rest } = newest;
  const entries = match ? [{ ...match, verdict: "wins", reason: "the only entry that covers the address" }] : [];
  return { ...rest, match, entries, meta: { position: position(), at: time, complete: current.length === 0, gaps: current, ...(current.some((one) => one.cluster) ? { candidates: [items[2], items[1]] } : {}) } };
}

let sequence = 1_000_000;
const position = () => `v1.e8c13768b68d8dc4.${sequence}`;

/** Returns the next change event, as the stream sends it. */
function change(index) {
  sequence += 1;
  const name = nameOf((index * 7) % 16);
  const meta = { cluster: name, revision: sequence, position: position() };
  const ip = `10.${(index * 7) % 16}.${index % 5}.${index % 251}`;
  if (index % 11 === 3) return { type: "delete", kind: "ipcache", key: `cilium/cache/ip/v1/${name}/${ip}`, reason: "deleted", meta };
  if (index % 17 === 5) return { type: "patch", kind: "service", key: `cilium/cache/services/v1/${name}/shop/cart`, meta, backends: { upserted: [{ ip, ports: [] }], removed: [`10.${index % 9}.0.7`] } };
  return { type: "upsert", kind: "ipcache", key: `cilium/cache/ip/v1/${name}/${ip}`, meta, object: { prefix: `${ip}/32`, host: true, cluster: name, identity: 65_536 + (index % 900), hostIP: `172.18.${index % 9}.1`, namespace: "shop", podName: `cart-${index.toString(36)}`, source: "clustermesh" } };
}

function services(count) {
  return Array.from({ length: count }, (_, index) => ({
    namespace: ["shop", "billing", "mail"][index % 3], name: index === 0 ? "cart" : `service-${index}`,
    clusters: ["osaka", "paris", "tokyo"].slice(0, 1 + (index % 3)).map((name) => ({ cluster: name, source: "service", includeExternal: true, backendCount: 3, origin: name === "osaka" ? "restored" : "live", phase: name === "osaka" ? "backingOff" : "live", ageSeconds: name === "osaka" ? 845 : 1.1, lastContact: ago(1), frontends: [{ ip: "10.96.1.10", ports: [] }] })),
    ...(index % 5 ? {} : { exports: { clusters: ["paris", "tokyo"], exportCreationTimestamp: ago(1e6), type: "ClusterSetIP", ports: [{ name: "http", protocol: "TCP", port: 80 }] }, conflicts: [{ reason: "PortConflict", clusters: ["tokyo"], message: "port http: 80/TCP of paris, the oldest export, is used" }] }),
  }));
}

function service() {
  const one = { ...services(1)[0], clusters: services(3)[2].clusters };
  one.backends = one.clusters.flatMap(({ cluster: name, origin }, place) => [1, 2, 3].map((index) => ({ ip: `10.${place + 1}.1.${20 + index}`, cluster: name, origin, zone: `zone-${"abc"[index - 1]}`, nodeName: `${name}-w${index}`, ports: [{ name: "http", protocol: "TCP", port: 8080 }], state: place === 2 && index === 3 ? "terminating" : "active" })));
  one.meta = { origin: "live", position: position() };
  return one;
}

/** Returns a service, with only the backends that the affinity in the query selects. */
function selectedService(query) {
  const unselected = service();
  const affinity = query.get("affinity");
  if (!affinity) return unselected;
  const from = query.get("from");
  const backends = unselected.backends.filter((one) => one.state === "active" && (affinity === "none" || (affinity === "local") === (one.cluster === from)));
  const reason = { local: `${from} has backends of its own, which affinity local prefers`, remote: "other clusters have backends that answer", none: "without affinity all are used" }[affinity];
  return { ...unselected, backends, reason, selection: { from, affinity, rule: "noAffinity", local: affinity !== "remote", remote: affinity !== "local", localKnown: true } };
}

/** Starts the server. Resolves to `{url, close()}`. */
export function start({ clusters: count = 255, perSecond = 0, port = 0, upstream, mesh = "" } = {}) {
  const calm = mesh !== "";
  const open = new Set();
  const all = () => Array.from({ length: count }, (_, index) => (mesh === "dump" ? dumpedCluster(index) : cluster(index, calm)));
  const known = () => new Set(all().map((one) => one.name));
  const answers = {
    "/v1/status": () => ({ version: "0.1.0", now: ago(0), uptimeSeconds: 99, loaded: true, position: position(), counts: { entries: count * 12_682, nodes: count * 50, services: count * 118, serviceExports: 4, endpointSlices: 12, identities: count * 300, ipcache: count * 12_204, rejected: 3 }, clusters: {}, directory: { path: "/var/lib/cilium/clustermesh", readable: true }, ...(mesh === "dump" ? { dump: { path: "dump.json", form: "etcdctl get --prefix -w json", time: ago(DUMP_AGE_S), timeFrom: "file" } } : {}), store: { state: "healthy", restoredEntries: 0, damagedRecords: 0 } }),
    "/v1/config": () => ({ items: [{ name: "cluster-name", values: ["paris"], source: "flag", description: "" }] }),
    "/v1/changes": () => ({ events: [], nextPosition: position(), more: false }),
    "/v1/clusters": () => ({ items: all(), meta: { position: position() } }),
    "/v1/problems": () => ({ items: calm && mesh !== "warned" ? [] : problems(all()), complete: true, meta: { position: position() } }),
    "/v1/global-services": () => ({ items: services(count === 0 ? 0 : 140), meta: { position: position() } }),
    "/v1/impact": () => ({ items: impact(), meta: {} }),
    "/v1/nodes": () => ({ items: [...known()].flatMap((name) => [1, 2, 3].map((index) => ({ cluster: name, name: `${name}-w${index}` }))), meta: {} }),
    "/v1/identities": () => ({ items: [{ id: 131_331, cluster: "tokyo", scope: "global", labels: { "k8s:app": "cart" } }], meta: {} }),
    "/v1/ipcache": () => ({ items: Array.from({ length: 8 }, (_, index) => change(index * 22).object).filter(Boolean), nextPageToken: "more", meta: {} }),
  };

  function answer(path, query) {
    if (path === "/v1/global-services" && query.get("name")) return { items: [selectedService(query)], meta: {} };
    if (answers[path]) return answers[path]();
    if (path === "/v1/history") return versions(query.get("ip"), query.get("pageToken"));
    if (path.startsWith("/v1/explain/")) {
      const ip = decodeURIComponent(path.slice(12));
      return query.get("at") ? explanationAt(ip, query.get("at")) : explanation(ip);
    }
    if (path === "/v1/ipcache/lookup") return { ip: query.get("ip"), match: explanation(query.get("ip")).match, others: [], meta: {} };
    if (path.startsWith("/v1/identities/")) return { ...answers["/v1/identities"]().items[0], others: [], meta: {} };
    return null;
  }

  function stream(response, query) {
    const kinds = query.getAll("kind");
    const send = (event) => response.write(`${JSON.stringify(event)}\n`);
    const ages = () => all().map((one) => ({ cluster: one.name, phase: one.phase, ageSeconds: one.ageSeconds, lastContact: one.lastContact }));
    response.writeHead(200, { "Content-Type": "application/x-ndjson", "Cache-Control": "no-cache, no-transform" });
    if (query.get("snapshot") && !query.get("after")) {
      send({ type: "reset", reason: "initial" });
      for (const object of all()) send({ type: "cluster", kind: "cluster", key: `cilium/cluster-config/${object.name}`, object, meta: { cluster: object.name } });
    }
    send({ type: "synced", mode: "snapshot", count: count, clusters: ages(), position: position() });
    const bookmark = setInterval(() => send({ type: "bookmark", clusters: ages(), position: position() }), 5_000);
    const wantsChanges = kinds.length === 0 || kinds.some((kind) => kind !== "cluster" && kind !== "problem");
    let index = 0;
    const changes = wantsChanges && perSecond > 0 && setInterval(() => {
      for (let one = 0; one < Math.max(1, perSecond / 50); one += 1) send(change((index += 1)));
    }, Math.max(20, 1000 / perSecond));
    open.add(response);
    response.on("close", () => {
      clearInterval(bookmark);
      clearInterval(changes);
      open.delete(response);
    });
  }

  /** Answers a batch lookup: each address belongs to the cluster in its second number. */
  function lookup(incoming, response) {
    let text = "";
    incoming.on("data", (part) => (text += part)).on("end", () => {
      const items = JSON.parse(text).ips.map((ip) => ({ ip, match: { ...explanation("10.2.0.1").match, cluster: ["osaka", "paris", "tokyo"][ip.split(".")[1] - 1] ?? "tokyo", podName: `cart-${ip.split(".")[3]}` } }));
      response.writeHead(200, { "Content-Type": "application/json" });
      response.end(JSON.stringify({ items, meta: {} }));
    });
  }

  function asset(response, path) {
    const name = path === "/" ? "index.html" : path.slice("/assets/dev/".length);
    let text = readFileSync(ASSETS + name, name.endsWith(".svg") ? undefined : "utf8");
    if (path === "/") {
      const modules = readdirSync(ASSETS, { recursive: true }).filter((one) => one.endsWith(".js")).map((one) => `<link rel="modulepreload" href="/assets/dev/${one}">\n`).join("");
      text = text.replace("{modules}", modules).replaceAll("{assets}", "/assets/dev");
    }
    response.writeHead(200, { "Content-Type": TYPES[name.split(".").pop()], "Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'" });
    response.end(text);
  }

  const server = createServer((incoming, response) => {
    const { pathname, searchParams } = new URL(incoming.url, "http://fake");
    if (pathname === "/v1/events") return stream(response, searchParams);
    if (incoming.method === "POST") return lookup(incoming, response);
    if (pathname.startsWith("/v1/")) {
      const body = answer(pathname, searchParams);
      response.writeHead(body ? 200 : 404, { "Content-Type": "application/json" });
      return response.end(JSON.stringify(body ?? { status: 404, detail: "not there", code: "notFound" }));
    }
    if (!upstream) {
      try {
        return asset(response, pathname);
      } catch {
        response.writeHead(404);
        return response.end();
      }
    }
    const { host, ...headers } = incoming.headers;
    const onward = request(upstream + incoming.url, { headers, agent: false }, (inner) => {
      response.writeHead(inner.statusCode, inner.headers);
      inner.pipe(response);
    });
    onward.on("error", () => response.destroy());
    onward.end();
  });
  return new Promise((resolve) => {
    server.listen(port, "127.0.0.1", () => resolve({
      url: `http://127.0.0.1:${server.address().port}`,
      close: () => new Promise((done) => {
        server.close(done);
        server.closeAllConnections();
      }),
    }));
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [clusters, perSecond, port] = process.argv.slice(2, 5).map(Number);
  const [upstream, mesh] = process.argv.slice(5, 7);
  console.log((await start({ clusters, perSecond, port, upstream, mesh })).url);
}
