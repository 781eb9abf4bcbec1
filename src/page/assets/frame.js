// Frame around each part: the bar with the search box, the navigation, the connection state, help
// and sign-in.

import { Component, html } from "./html.js";
import { signIn } from "./api.js";
import { mirror, reconnect, summary } from "./mirror.js";
import { Commands } from "./copy.js";
import { noClusters } from "./parts/empty.js";
import { hash } from "./route.js";
import { Search } from "./search.js";
import { STATES, clusterState, clustersState, isGone, pageState, problemsState, stateWord } from "./state.js";
import { surplus } from "./windows.js";
import { age, clock, number, plural } from "./words.js";

/**
 * State of the frame. `isRefused`: a token is needed. `isWrong`: the given token was not accepted.
 */
export const frameState = { help: false, isRefused: false, isWrong: false, draw() {}, signedIn() {} };

const VIEWS = [
  ["mesh", "Mesh"],
  ["explain", "Explain"],
  ["services", "Services"],
  ["problems", "Problems"],
  ["changes", "Changes"],
];

const KEYS = [
  ["/", "search"],
  ["g m  g e  g s  g p  g c", "Mesh, Explain, Services, Problems, Changes"],
  ["j  k", "next and previous row"],
  ["Enter", "open"],
  ["Esc", "back"],
  ["p", "pause, in Changes"],
  ["?", "this help"],
];

/** Key of the theme in the browser's storage. Without it, the page has the theme of the system. */
const THEME_KEY = "meshkeep.theme";

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Stores the theme if one is given. Returns the stored theme. */
function persistTheme(theme) {
  try {
    if (theme) localStorage.setItem(THEME_KEY, theme);
    return localStorage.getItem(THEME_KEY);
  } catch {
    return theme;
  }
}

const initialTheme = persistTheme();
if (initialTheme === "dark" || initialTheme === "light") document.documentElement.dataset.theme = initialTheme;

function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  persistTheme(document.documentElement.dataset.theme);
  frameState.draw();
}

/** Summary in the bar: the number of live clusters or of clusters in the dump, and the oldest age. */
function Facts() {
  const { live, count, oldest, never, unknown } = summary();
  if (!mirror.isRead) return html`<p class="facts"><span class="quiet">reading the clusters …</span></p>`;
  const none = noClusters() && html`<a href=${hash("mesh")} class="is-${isGone() ? "gone" : "bad"} tone" title=${noClusters()}><span class="dot" aria-hidden="true"></span>no remote cluster</a>`;
  if (count === 0) return html`<p class="facts">${none || html`<span class="quiet">no cluster yet</span>`}</p>`;
  const state = clustersState();
  const liveText = state === "gone" ? `live at ${clock(mirror.heardAt)}` : "live";
  const more = [never && `${never} never read`, unknown && `${unknown} of unknown age`].filter(Boolean).join(", ");
  const oldestState = never + unknown > 0 || !oldest ? state : clusterState(mirror.clusters.get(oldest.cluster));
  return html`<p class="facts">${none}
    <a href=${hash("mesh")} class="is-${state} tone">
      <span class="dot" aria-hidden="true"></span>${mirror.status?.dump ? html`dump of <b>${plural(count, "cluster")}</b>` : html`<b>${number(live)}/${number(count)}</b> ${liveText}`}
    </a>
    <span class="is-${oldestState} tone" title=${oldest ? `the oldest is ${oldest.cluster}` : ""}>
      ${oldest ? html`oldest <b>${age(oldest.age)}</b>` : ""}${more && oldest ? ", " : ""}${more}
    </span>
  </p>`;
}

/** Returns the state of the connection and its text. */
function linkState() {
  const { link, heardAt, status } = mirror;
  const now = Date.now();
  if (link.state === "lost") {
    const wait = Math.max(0, Math.ceil((link.until - now) / 1000));
    return { state: "lost", text: `lost at ${clock(link.since)}: reconnecting ${wait > 1 ? `in ${wait} s` : "now"}` };
  }
  if (link.state === "loading" || (link.state !== "following" && status && !status.loaded)) return { state: "busy", text: "meshkeep is loading its store" };
  if (link.state === "surplus") return { state: "busy", text: "polling: other windows have the streams" };
  if (link.state === "hidden") return { state: "hidden", text: "paused while this window is hidden" };
  if (link.state === "following") return { state: "following", text: `following, ${age((now - heardAt) / 1000)} ago` };
  return { state: "busy", text: link.state === "catchingUp" ? "catching up" : "connecting" };
}

let announcedState = "busy";
let announced = "";

/** Text for screen readers: only the loss of the connection and its return. */
function announcement(state) {
  if (state === "lost" && announcedState !== "lost") announced = "The connection to meshkeep is lost. The page shows the last state.";
  if (state === "following" && announcedState === "lost") announced = "The connection to meshkeep is back. The page is up to date again.";
  if (state !== "busy") announcedState = state;
  return announced;
}

function Link() {
  const { state, text } = linkState();
  return html`<p class="link link-${state}">
    <span class="dot is-${{ following: "good", lost: "bad", busy: "busy", hidden: "gone" }[state]}" aria-hidden="true"></span>
    <span>${text}</span>
    ${state === "lost" && html`<button type="button" class="small" onClick=${reconnect}>now</button>`}
  </p>`;
}

function Lost() {
  const { link, heardAt, isRead } = mirror;
  if (link.state !== "lost") return null;
  const shownState = isRead ? `The page shows the state of ${clock(heardAt)}.` : "";
  return html`<div class="banner bad" id="lost">
    <b>meshkeep does not answer</b> since ${clock(link.since)} (${link.why}). ${shownState} The page reconnects by itself and continues.
  </div>`;
}

/** Banner with the reason why this window has no stream. */
function Surplus() {
  const older = surplus();
  if (!older) return null;
  return html`<div class="banner" id="surplus"><b>This window waits for a stream</b> and reads the state every few seconds. Over HTTP/1.1, a browser opens six connections to one server,
    and ${plural(older.windows, "older window")} of this page ${older.windows === 1 ? "uses" : "use"} ${number(older.count)} for streams. Close or hide one: a hidden window releases its connections after 5 s.</div>`;
}

function NewVersion() {
  const { status, firstVersion } = mirror;
  if (!status || !firstVersion || status.version === firstVersion) return null;
  return html`<div class="banner">meshkeep is now ${status.version}; this page is from ${firstVersion}.
    <button type="button" class="small" onClick=${() => location.reload()}>reload</button></div>`;
}

/** Banner with the time of the dump that the page shows. */
function Dump() {
  const dump = mirror.status?.dump;
  if (!dump) return null;
  return html`<div class="banner" id="dump"><b>This is a dump of ${dump.time}</b>, made by ${dump.form} (${dump.path}). It does not change.</div>`;
}

function Help() {
  return html`<div class="veil" onClick=${() => ((frameState.help = false), frameState.draw())}>
    <div class="dialog" role="dialog" aria-modal="true" aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <dl class="keys">${KEYS.map(([keys, what]) => html`<dt>${keys.split("  ").map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${what}</dd>`)}</dl>
      <h2>Marks</h2>
      <dl class="keys">
        <dt><span class="mark">◌</span></dt><dd>restored from the store, not confirmed by its source since meshkeep started</dd>
        <dt><span class="mark">◍</span></dt><dd>held: its source lost it; meshkeep keeps it until the source is back</dd>
        <dt><span class="mark amber">▲</span></dt><dd>a certificate that expires within 30 days</dd>
        ${STATES.map((state) => html`<dt><span class="dot is-${state}"></span></dt><dd>${stateWord(state)}${stateWord(state) === "unknown" ? ": meshkeep does not answer" : ""}</dd>`)}
      </dl>
      <p><a href="/docs">The API</a> · <a href="/metrics">metrics</a> · <a href="/openapi.json">OpenAPI</a></p>
    </div>
  </div>`;
}

/** Sign-in dialog. The token stays in memory, so the page asks for it again after a reload. */
class SignIn extends Component {
  componentDidMount() {
    // the input can only get the focus once it is in the document
    this.base.querySelector("input").focus();
  }

  submit(event) {
    event.preventDefault();
    const token = event.target.elements.token.value.trim();
    if (!token) return;
    event.target.reset();
    frameState.isRefused = false;
    signIn(token);
    frameState.signedIn();
    frameState.draw();
  }

  render() {
    return html`<div class="veil">
      <form class="dialog" onSubmit=${(event) => this.submit(event)} aria-labelledby="sign-in-title" role="dialog" aria-modal="true">
        <h2 id="sign-in-title">meshkeep requires a token</h2>
        <p>The token is in the file of <code>--token-file</code>. The page only keeps it in memory, until it is closed or reloaded.</p>
        ${frameState.isWrong && html`<p class="red" role="alert">meshkeep does not accept that token.</p>`}
        <label>Token <input name="token" type="password" autocomplete="off" spellcheck="false" /></label>
        <button type="submit" class="main">Sign in</button>
      </form>
    </div>`;
  }
}

/** The whole page. */
export function Frame({ route, part }) {
  const { state } = linkState();
  const problems = problemsState();
  const isCovered = frameState.isRefused;
  return html`
    <div class="sheet ${isGone() ? "is-lost" : ""}" inert=${isCovered}>
      <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>skip to the content</a>
      <header><div class="bar">
        <a class="brand" href=${hash("mesh")}><${Logo} /> meshkeep${mirror.home && html`<span class="home">${mirror.home}</span>`}</a>
        <${Search} draw=${frameState.draw} />
        <${Facts} />
        <div class="tools">
          <button type="button" class="icon" onClick=${toggleTheme} aria-label=${isDark() ? "light colours" : "dark colours"} title="light or dark theme">${isDark() ? "☀" : "☾"}</button>
          <button type="button" class="icon" onClick=${() => ((frameState.help = true), frameState.draw())} aria-label="help and keys" title="keys (?)">?</button>
        </div>
      </div>
      <div class="places">
        <nav aria-label="views">
          ${VIEWS.map(([name, title]) => html`<a key=${name} href=${hash(name)} aria-current=${route.part === name ? "page" : undefined}>
            ${title}${name === "problems" && problems.count > 0 && html` <span class="badge is-${problems.state}"><span aria-hidden="true">${number(problems.count)}</span><span class="unseen">${plural(problems.count, "problem")}</span></span>`}
          </a>`)}
        </nav>
        <${Commands} view=${part?.commands?.(route)} />
        <${Link} />
      </div>
      <${Lost} /><${Surplus} /><${NewVersion} /><${Dump} /></header>
      <main id="main" tabindex="-1" aria-label=${part?.title(route)}>${part?.view()}</main>
      <p class="unseen" role="status" aria-live="polite">${announcement(state)}</p>
    </div>
    ${frameState.help && html`<${Help} />`}
    ${isCovered && html`<${SignIn} />`}
  `;
}

function Logo() {
  return html`<svg class="logo is-${pageState().state}" viewBox="0 0 32 32" aria-hidden="true">
    <path d="M9 22 16 9l7 13z" /><circle cx="16" cy="9" r="3.4" /><circle cx="9" cy="22" r="3.4" /><circle cx="23" cy="22" r="3.4" />
  </svg>`;
}
