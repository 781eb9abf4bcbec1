// Addresses within the page: `#/services/shop/cart?from=paris`. A part and what it shows can be sent to a colleague.

/** The parts that an address may name. */
export const PARTS = ["mesh", "explain", "services", "problems", "changes", "find"];

/** What the address names: `{part, path: [...], params}`. */
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

/** The address of a part. */
export function hash(part, path = [], params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one) query.append(name, one);
  }
  const text = query.toString();
  return `#/${[part, ...path].map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

/** Goes there; `replace` leaves no step behind for the way back. */
export function go(address, replace = false) {
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}
