// Preact's `html`, with texts that run from right to left kept to themselves: a name that another cluster chose must not change the order of what is
// next to it. An element isolates all of its text (style.css). Within one text, such as `namespace/pod`, each run from right to left gets an element.

import { Component, h, html as template, render } from "./vendor/preact.js";

export { Component, render };

/** Letters that are written from right to left (Unicode's bidirectional classes R and AL), and the blanks between them. */
const LETTERS = "[\\u0590-\\u08ff\\ufb1d-\\ufdff\\ufe70-\\ufefc\\u{10800}-\\u{10fff}\\u{1e800}-\\u{1efff}]+";
const RUNS = new RegExp(`${LETTERS}(?: +${LETTERS})*`, "gu");
const ANY = new RegExp(LETTERS, "u");

/** Nodes whose texts were split: those of a nested template are part of the outer one too. */
const split = new WeakSet();

function parts(text) {
  const all = [];
  let from = 0;
  for (const run of text.matchAll(RUNS)) {
    all.push(text.slice(from, run.index), h("bdi", null, run[0]));
    from = run.index + run[0].length;
  }
  return [...all, text.slice(from)];
}

function isolated(node) {
  if (typeof node === "string") return ANY.test(node) ? parts(node) : node;
  if (Array.isArray(node)) {
    const all = node.map(isolated);
    // a list that has none stays the same: it may be somebody's data
    return all.some((one, index) => one !== node[index]) ? all : node;
  }
  if (node?.props && !split.has(node)) {
    split.add(node);
    if (node.props.children !== undefined) node.props.children = isolated(node.props.children);
  }
  return node;
}

/** Makes nodes of a template. */
export function html(strings, ...values) {
  return isolated(template(strings, ...values));
}
