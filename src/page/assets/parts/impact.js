// Impact of a cluster that leaves the mesh, below its opened row.

import { html } from "../html.js";
import { ask, query } from "../api.js";
import { hash } from "../route.js";
import { number, plural, spaced } from "../words.js";

/** Effects on services in the order of the table, with the words for each and its colour. */
const EFFECTS = [
  ["losesAll", "would lose all backends", "red"],
  ["fallsBack", "would fall back to other backends", "amber"],
  ["losesSome", "would lose some backends", "amber"],
  ["unknown", "too large: the backends are not known", "red"],
  ["unnoticed", "would not notice", ""],
];

/** Maximum number of items that are requested: as many as one page of the API. */
const ITEMS_MAX = 10_000;

/** Maximum number of services in the table. */
const SHOWN_MAX = 50;

const rank = (item) => EFFECTS.findIndex(([effect]) => effect === item.effect);

/** Returns a count with its noun. `more` is `+` if the count is a lower bound. */
function counted(count, more, one, many = `${one}s`) {
  return more ? `${number(count)}${more} ${many}` : plural(count, one, many);
}

function counts(services, more) {
  const parts = EFFECTS.map(([effect, words, colour]) => [services.filter((one) => one.effect === effect).length, effect, words, colour]);
  return parts.filter(([count]) => count > 0).map(([count, effect, words, colour]) => html`<li key=${effect} class=${colour}>${counted(count, more, "global service")} ${words}</li>`);
}

function Row({ item }) {
  const { none, local, remote } = item.affinities ?? {};
  return html`<tr>
    <th scope="row"><a href=${hash("services", [item.namespace, item.name])}>${item.namespace}/${item.name}</a></th>
    <td>${spaced(item.effect)}</td><td class="count">${item.lostBackends ?? ""}</td><td class="count">${item.remainingBackends ?? ""}</td>
    <td>${none && spaced(none)}</td><td>${local && spaced(local)}</td><td>${remote && spaced(remote)}</td></tr>`;
}

/** The impact of one cluster, requested once. */
export class Impact {
  constructor(cluster, draw) {
    this.cluster = cluster;
    this.stop = new AbortController();
    ask(`/v1/impact${query({ cluster, limit: ITEMS_MAX })}`, this.stop.signal)
      .then((page) => (this.page = page))
      .catch((error) => (this.error = error))
      .finally(draw);
  }

  view() {
    const { page, error, cluster } = this;
    if (error) return html`<p class="impact quiet">The impact is not known: ${error.message}.</p>`;
    if (!page) return html`<p class="impact quiet">Searching …</p>`;
    const services = page.items.filter((item) => item.kind === "service").sort((one, other) => rank(one) - rank(other));
    const count = (kind) => page.items.filter((item) => item.kind === kind).length;
    // a kind is complete once the page has an item of a later kind
    const more = (...laterKinds) => (page.nextPageToken && !laterKinds.some(count) ? "+" : "");
    const moreServices = more("identity", "cidr");
    return html`<section class="impact" aria-label=${`impact of ${cluster}`}>
      <h2>Without ${cluster}</h2>
      <ul>${services.length > 0 ? counts(services, moreServices) : html`<li>${moreServices ? "not all global services were checked" : "no global service would change"}</li>`}
        <li>${counted(count("identity"), more("cidr"), "identity", "identities")} and ${counted(count("cidr"), more(), "CIDR")} would no longer be announced</li></ul>
      ${services.length > 0 && html`<table class="inner"><caption class="unseen">global services without ${cluster}</caption>
        <thead><tr><th scope="col">service</th><th scope="col">effect</th><th scope="col" class="count">lost</th><th scope="col" class="count">remaining</th>
          <th scope="col">no affinity</th><th scope="col">local</th><th scope="col">remote</th></tr></thead>
        <tbody>${services.slice(0, SHOWN_MAX).map((item) => html`<${Row} key=${`${item.namespace}/${item.name}`} item=${item} />`)}</tbody></table>`}
      ${services.length > SHOWN_MAX && html`<p class="quiet">${number(services.length - SHOWN_MAX)}${moreServices} more: <a href=${`/v1/impact${query({ cluster })}`}>/v1/impact</a> has all.</p>`}
    </section>`;
  }

  close() {
    this.stop.abort();
  }
}
