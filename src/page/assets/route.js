// URLs within the page, such as `#/services/shop/cart?from=paris`. They contain everything that a
// part shows, so they can be shared.

/** Names of the parts. */
export const PARTS = ["mesh", "explain", "services", "problems", "changes", "find"];

/** Parses the URL: `{part, path: [...], params}`. */
export function current() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [part, ...rest] = path.split("/").map(decoded);
  return { part: PARTS.includes(part) ? part : "mesh", path: rest.filter((one) => one !== ""), params: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Returns the URL of a part. */
export function hash(part, path = [], params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one) query.append(name, one);
  }
  const text = query.toString();
  return `#/${[part, ...path].map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

/** Navigates to a URL. `replace` adds no step to the history. */
export function go(address, replace = false) {
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}
