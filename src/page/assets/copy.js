// Buttons that copy a text: addresses, identities, and the commands that answer the same question
// as the current view.

import { Component, html } from "./html.js";
import { hasToken } from "./api.js";

/** Time for which a button confirms the copy, in ms. */
const CONFIRM_MS = 1_500;

/**
 * Copies a text, and returns whether that succeeded. Without TLS, `navigator.clipboard` only exists
 * in pages from the same machine.
 */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const box = document.createElement("textarea");
    box.value = text;
    box.className = "unseen";
    document.body.append(box);
    box.select();
    const isCopied = document.execCommand("copy");
    box.remove();
    focused?.focus();
    return isCopied;
  }
}

/** Button that copies `text`. With `children`, they are its label; otherwise it has an icon. */
export class Copy extends Component {
  async copy(event) {
    event.preventDefault();
    const result = (await copyText(this.props.text)) ? "copied" : "not copied: the browser refused it";
    this.setState({ result });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.setState({ result: "" }), CONFIRM_MS);
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
  }

  render({ text, name, children }, { result }) {
    return html`<button type="button" class="copy ${result ? "done" : ""} ${children ? "worded" : ""}" onClick=${(event) => this.copy(event)}
      title=${result || text} aria-label=${result || (name ?? `copy ${text}`)}>${children ?? html`<svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d="M5.5 5.5v-4h9v9h-4M1.5 5.5h9v9h-9z" /></svg>`}
      ${result && html`<span>${result}</span>`}</button>`;
  }
}

/** Returns a text as one word of a shell, without control characters, which no name has. */
function quoted(text) {
  const clean = String(text).replace(/[\u0000-\u001f\u007f-\u009f]/g, "");
  return /^[\w.:/=@,+-]+$/.test(clean) ? clean : `'${clean.replaceAll("'", "'\\''")}'`;
}

/** Address of a meshkeep for which the commands need no `--server`. */
const LOCAL = "127.0.0.1:9870";

/**
 * Returns the commands of a view: `{curl, meshkeep}`. `path` is the path of the API with its query,
 * and `words` are the arguments of meshkeep.
 */
export function commandsOf({ path, words, isStream }) {
  const bearer = hasToken() ? ' -H "Authorization: Bearer $(cat TOKEN-FILE)"' : "";
  const isLocal = location.host === LOCAL && !location.protocol.endsWith("s:");
  const options = [...(isLocal ? [] : ["--server", location.origin]), ...(hasToken() ? ["--token-file", "TOKEN-FILE"] : [])];
  return {
    curl: `curl ${isStream ? "-N " : "-s "}${bearer.trimStart()}${bearer && " "}${quoted(location.origin + path)}`,
    meshkeep: ["meshkeep", ...words, ...options].map(quoted).join(" "),
  };
}

/** Buttons that copy the current view as a command. */
export function Commands({ view }) {
  if (!view) return null;
  const { curl, meshkeep } = commandsOf(view);
  return html`<div class="commands" role="group" aria-label="copy this view as a command"><span class="quiet">copy as</span>
    <${Copy} text=${curl} name="copy this view as a curl command">curl<//><${Copy} text=${meshkeep} name="copy this view as a meshkeep command">meshkeep<//>
  </div>`;
}
