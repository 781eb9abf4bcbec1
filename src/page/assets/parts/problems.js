// Problems: the current findings, worst first, each with advice and links to the objects.

import { html } from "../html.js";
import { query } from "../api.js";
import { PROBLEMS_MAX, mirror, readProblems, summary } from "../mirror.js";
import { hash } from "../route.js";
import { Empty, noClusters } from "./empty.js";
import { isGone } from "../state.js";
import { age, compareNames, linkOfKey, number, ofKey, plural, since, spaced } from "../words.js";

const SEVERITIES = ["critical", "warning", "info"];

/** Maximum number of rows that are drawn at once. */
const SHOWN_MAX = 200;

function about(problem) {
  const link = linkOfKey(problem.key);
  const parsed = ofKey(problem.key);
  const links = problem.clusters.slice(0, 6).map((name) => html`<a class="chip" key=${name} href=${hash("mesh", [name])}>${name}</a> `);
  if (problem.clusters.length > 6) links.push(html`<span class="quiet">and ${problem.clusters.length - 6} more </span>`);
  if (link) links.push(html`<a href=${link} class="mono">${parsed.name}</a>`);
  return links;
}

function Row({ problem }) {
  const seconds = since(problem.since);
  return html`<li class="problem ${problem.severity}" tabindex="0" data-row>
    <span class="severity ${problem.severity}">${problem.severity}</span>
    <div>
      <p class="what"><b>${spaced(problem.kind)}</b>${problem.count > 1 && html` <span class="quiet">${number(problem.count)} keys</span>`} ${about(problem)}</p>
      <p>${problem.detail}</p>
      <p class="advice">${problem.advice}</p>
    </div>
    <span class="since">${seconds === undefined ? "" : html`since ${age(seconds)}`}</span>
  </li>`;
}

function link(route, change) {
  const params = { severity: route.params.get("severity"), cluster: route.params.get("cluster"), kind: route.params.get("kind"), ...change };
  return hash("problems", [], params);
}

export const problems = {
  title: () => "Problems",
  commands({ params }) {
    const filter = Object.fromEntries(["severity", "kind", "cluster"].map((name) => [name, params.get(name)]).filter(([, value]) => value));
    return { path: `/v1/problems${query(filter)}`, words: ["problems", ...Object.entries(filter).map(([name, value]) => `--${name}=${value}`)] };
  },

  open(route, draw) {
    let shown = SHOWN_MAX;
    readProblems();
    const matches = (problem) =>
      [
        [problem.severity === route.params.get("severity"), "severity"],
        [problem.kind === route.params.get("kind"), "kind"],
        [problem.clusters.includes(route.params.get("cluster")), "cluster"],
      ].every(([fits, name]) => fits || !route.params.get(name));
    const rank = (problem) => SEVERITIES.indexOf(problem.severity);

    return {
      view() {
        const all = mirror.problems;
        if (!all) return html`<h1 class="unseen">Problems</h1><p class="sentence quiet">Searching …</p>`;
        const found = all.filter(matches).sort((one, other) => rank(one) - rank(other) || compareNames(one.id, other.id));
        const count = (severity) => all.filter((one) => one.severity === severity).length;
        const cluster = route.params.get("cluster");
        const { count: clusters } = summary();
        const seen = `as of ${age((Date.now() - mirror.problemsAt) / 1000)} ago`;
        return html`<h1 class="unseen">Problems</h1>
          <div class="filters">
            <a class="pill" href=${link(route, { severity: null })} aria-current=${route.params.get("severity") ? undefined : "true"}>all ${number(all.length)}${mirror.moreProblems ? "+" : ""}</a>
            ${SEVERITIES.map((one) => html`<a key=${one} class="pill ${one}" href=${link(route, { severity: one })} aria-current=${route.params.get("severity") === one ? "true" : undefined}>
              ${one} ${number(count(one))}</a>`)}
            ${cluster && html`<a class="pill" href=${link(route, { cluster: null })}>${cluster} <span aria-label="remove this filter">×</span></a>`}
            <span class="quiet push">${seen}${mirror.problemsComplete ? "" : ", the search is not complete yet"}</span>
          </div>
          ${found.length === 0 && (noClusters() || clusters === 0)
            ? html`<${Empty} />`
            : found.length === 0
            ? html`<div class="sentence fine"><span class="dot is-${isGone() ? "gone" : "good"}" aria-hidden="true"></span>
                <p>${mirror.moreProblems ? `None of the first ${number(PROBLEMS_MAX)} is of this kind` : `${all.length === 0 ? "No problems" : "No problems of this kind"} in ${cluster ?? plural(clusters, "cluster")}`}, ${seen}.</p></div>`
            : html`<ul class="problems">${found.slice(0, shown).map((problem) => html`<${Row} key=${problem.id} problem=${problem} />`)}</ul>`}
          ${found.length > shown && html`<button type="button" onClick=${() => ((shown += SHOWN_MAX), draw())}>${number(found.length - shown)} more</button>`}
          ${mirror.moreProblems && html`<p class="quiet">The first ${number(PROBLEMS_MAX)} are shown; <a href=${`/v1/problems${query({ severity: route.params.get("severity"), kind: route.params.get("kind"), cluster })}`}>/v1/problems</a> has all.</p>`}`;
      },
      moved(next) {
        route = next;
        shown = SHOWN_MAX;
        return true;
      },
      close() {},
    };
  },
};
