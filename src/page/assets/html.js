// Preact's `html` that isolates right-to-left text: a name that another cluster chose must not
// change the order of the text next to it. Each element isolates its own text (style.css). Within
// one text, such as `namespace/pod`, each right-to-left run gets its own element.

import { Component, h, html as template, render } from "./vendor/preact.js";

export { Component, render };

/**
 * Right-to-left letters (Unicode's bidirectional classes R and AL), and the spaces between them.
 */
const LETTERS = "[\\u0590-\\u08ff\\ufb1d-\\ufdff\\ufe70-\\ufefc\\u{10800}-\\u{10fff}\\u{1e800}-\\u{1efff}]+";
const RUNS = new RegExp(`${LETTERS}(?: +${LETTERS})*`, "gu");
const RTL_LETTER = new RegExp(LETTERS, "u");

/**
 * Nodes whose text was already split. Nodes of a nested template are also part of the outer one.
 */
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
  if (typeof node === "string") return RTL_LETTER.test(node) ? parts(node) : node;
  if (Array.isArray(node)) {
    const all = node.map(isolated);
    // a list without such text stays the same object: it may be data of the caller
    return all.some((one, index) => one !== node[index]) ? all : node;
  }
  if (node?.props && !split.has(node)) {
    split.add(node);
    if (node.props.children !== undefined) node.props.children = isolated(node.props.children);
  }
  return node;
}

/** Creates nodes from a template. */
export function html(strings, ...values) {
  return isolated(template(strings, ...values));
}
