// Search box: suggestions while the user types, with arrow keys and Enter, as an accessible
// combobox.

import { Component, html } from "./html.js";
import { suggest, target } from "./search_query.js";
import { go } from "./route.js";

/** Pause in typing after which meshkeep is queried, in ms. */
const PAUSE_MS = 120;
/** Time after which the list closes when the box loses the focus, in ms. */
const CLOSE_MS = 150;
/** Maximum number of suggestions of each kind. */
const LIMIT = 8;

export class Search extends Component {
  constructor() {
    super();
    this.state = { text: "", items: [], at: -1, isOpen: false, isBusy: false, trouble: "" };
    this.timer = 0;
    this.stop = new AbortController();
  }

  type(text) {
    this.setState({ text, at: -1, isOpen: text.trim() !== "", isBusy: text.trim() !== "" });
    clearTimeout(this.timer);
    this.stop.abort();
    if (text.trim()) this.timer = setTimeout(() => this.ask(text.trim()), PAUSE_MS);
    else this.setState({ items: [] });
  }

  async ask(text) {
    this.stop = new AbortController();
    const { signal } = this.stop;
    this.setState({ isBusy: true });
    try {
      const items = await suggest(text, LIMIT, signal);
      if (!signal.aborted) this.setState({ items, isBusy: false, trouble: "" });
    } catch (error) {
      if (!signal.aborted) this.setState({ items: [], isBusy: false, trouble: error.message });
    }
  }

  openResult(href) {
    clearTimeout(this.timer);
    this.stop.abort();
    this.setState({ text: "", items: [], at: -1, isOpen: false, isBusy: false });
    document.getElementById("search").blur();
    go(href);
  }

  /** Closes the list after a moment, in which a click on it still works, unless the user returned. */
  leave() {
    setTimeout(() => document.activeElement?.id !== "search" && this.setState({ isOpen: false }), CLOSE_MS);
  }

  press(event) {
    const { items, at, text } = this.state;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const by = event.key === "ArrowDown" ? 1 : -1;
      this.setState({ at: items.length ? (at + by + items.length + (at < 0 && by < 0 ? 1 : 0)) % items.length : -1, isOpen: true });
    } else if (event.key === "Enter" && text.trim()) {
      this.openResult(items[at]?.href ?? target(text.trim()));
    } else if (event.key === "Escape") {
      this.setState({ text: "", items: [], isOpen: false });
      return;
    } else return;
    event.preventDefault();
  }

  render(_, { text, items, at, isOpen, isBusy, trouble }) {
    const hasList = isOpen && (items.length > 0 || trouble || !isBusy);
    return html`<search class="search">
      <input id="search" type="text" role="combobox" aria-label="search" aria-expanded=${hasList} aria-controls="found" aria-autocomplete="list" autocomplete="off" spellcheck="false" autocapitalize="off"
        aria-activedescendant=${at >= 0 ? `found-${at}` : undefined} placeholder="address, prefix, identity, label, pod, node, service" value=${text}
        onInput=${(event) => this.type(event.target.value)} onKeyDown=${(event) => this.press(event)}
        onFocus=${() => this.setState({ isOpen: text.trim() !== "" })} onBlur=${() => this.leave()} />
      <kbd aria-hidden="true">/</kbd>
      ${hasList && html`<ul id="found" role="listbox" aria-label="suggestions">
        ${items.map((one, index) => html`<li key=${index} id=${`found-${index}`} role="option" aria-selected=${index === at} class=${index === at ? "at" : ""}
          onMouseDown=${(event) => (event.preventDefault(), this.openResult(one.href))}><span class="found-kind">${one.kind}</span><span class="mono">${one.title}</span><span class="quiet found-note">${one.note}</span></li>`)}
        ${items.length === 0 && html`<li class="quiet nothing" role="option" aria-disabled="true" aria-selected="false">${trouble || "there is no pod, shared service, node, cluster, label or address with this text"}</li>`}
      </ul>`}
    </search>`;
  }
}
