// Entry point of the page: the frame, the current part, and the keyboard. A part is `{title(route),
// commands(route), open(route, redraw)}`; `open` returns `{view(), close(), moved?(route),
// key?(event)}`. The page is drawn at most ten times per second.

import { html, render } from "./html.js";
import { Frame, frameState } from "./frame.js";
import { mirror, restart, start } from "./mirror.js";
import { current, go, hash } from "./route.js";
import { hasToken, signIn, whenRefused } from "./api.js";
import { showPageState } from "./state.js";
import { forgetViewToken, moveViewToken, storedViewToken } from "./view_token.js";
import { changes } from "./parts/changes.js";
import { explain } from "./parts/explain.js";
import { find } from "./parts/find.js";
import { mesh } from "./parts/mesh.js";
import { problems } from "./parts/problems.js";
import { services } from "./parts/services.js";

/** Minimum time between two draws, in ms: people cannot read faster. */
const DRAW_EVERY_MS = 100;
/** Interval of redraws for growing ages, in ms. */
const TICK_MS = 1_000;
/** Time that `g` waits for the second key, in ms. */
const CHORD_MS = 1_500;

const parts = { mesh, explain, services, problems, changes, find };
const CHORD_PARTS = { m: "mesh", e: "explain", s: "services", p: "problems", c: "changes" };
const root = document.getElementById("page");

signIn(moveViewToken() ?? storedViewToken());

let currentPart = null;
let route = current();
let isDrawPending = false;
let drawnAt = 0;
let drawn = 0;
let isNewPart = false;
let chordAt = 0;

function draw() {
  if (isDrawPending) return;
  isDrawPending = true;
  const wait = Math.max(0, DRAW_EVERY_MS - (performance.now() - drawnAt));
  // a hidden window gets no animation frames, but its title and icon are visible
  setTimeout(() => (document.hidden ? drawNow() : requestAnimationFrame(drawNow)), wait);
}

function drawNow() {
  isDrawPending = false;
  drawnAt = performance.now();
  drawn += 1;
  showPageState(currentPart.title(route));
  render(html`<${Frame} route=${route} part=${currentPart} />`, root);
  // screen readers start at the new part
  if (isNewPart) document.getElementById("main").focus({ preventScroll: true });
  isNewPart = false;
}

/** Opens the part in the URL. If the part stays the same, it gets the new route instead. */
function follow() {
  const viewToken = moveViewToken();
  if (viewToken !== null) signInWith(viewToken);
  const before = route;
  route = current();
  if (currentPart && before.part === route.part && currentPart.moved?.(route)) {
    draw();
    return;
  }
  currentPart?.close();
  const part = parts[route.part];
  currentPart = part.open(route, draw);
  currentPart.title = part.title;
  currentPart.commands = part.commands;
  draw();
  if (before.part !== route.part) {
    scrollTo(0, 0);
    isNewPart = true;
  }
}

/** Signs in with the token of a link that was opened in this tab. */
function signInWith(viewToken) {
  frameState.isRefused = false;
  signIn(viewToken);
  restart();
}

function isTyping(target) {
  return target.closest?.("input, select, textarea, [contenteditable]");
}

function rows() {
  return [...document.querySelectorAll("#main [data-row]")].filter((row) => row.offsetParent !== null);
}

/** `j` and `k` move the focus from row to row, so that Enter opens the focused row. */
function step(by) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
  const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || frameState.isRefused) return;
  if (event.key === "Escape") {
    if (frameState.help) frameState.help = false;
    else if (isTyping(event.target)) event.target.blur();
    else if (currentPart?.key?.(event) !== true) history.length > 1 && route.path.length > 0 && go(hash(route.part));
    draw();
    return;
  }
  if (isTyping(event.target)) return;
  const isChord = performance.now() - chordAt < CHORD_MS;
  chordAt = 0;
  if (isChord && CHORD_PARTS[event.key]) go(hash(CHORD_PARTS[event.key]));
  else if (event.key === "g") chordAt = performance.now();
  else if (event.key === "/") document.getElementById("search").focus();
  else if (event.key === "?") frameState.help = !frameState.help;
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (currentPart?.key?.(event) !== true) return;
  event.preventDefault();
  draw();
});

addEventListener("hashchange", follow);

whenRefused(() => {
  frameState.isWrong = hasToken() || frameState.isWrong;
  forgetViewToken();
  signIn(null);
  frameState.isRefused = true;
  draw();
});
frameState.draw = draw;
frameState.signedIn = restart;
start(draw);
follow();
setInterval(() => document.hidden || draw(), TICK_MS);

// for debugging and the tests
window.meshkeepPage = {
  mirror,
  get drawn() {
    return drawn;
  },
};
