// The token in a link for displays that nobody signs in to. It is in the fragment of the address,
// which a browser sends to no server. The page moves it to the storage of its tab, where it
// survives a reload.

/** Parameter in the address, as in `#/mesh?view-token=…`. */
const PARAMETER = "view-token=";
/** Key in the storage of the tab. */
const KEY = "meshkeep.viewToken";

/** Decodes the token. A `%` that begins no escape is part of it. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Moves the token from the address, also that in the history, to the storage. Returns it, or `null`
 * if the address has none.
 */
export function moveViewToken() {
  const [path, query = ""] = location.hash.split("?", 2);
  const parameters = query.split("&");
  const found = parameters.find((parameter) => parameter.startsWith(PARAMETER));
  if (found === undefined) return null;
  const rest = parameters.filter((parameter) => parameter !== found).join("&");
  history.replaceState(null, "", `${path}${rest && `?${rest}`}`);
  const token = decoded(found.slice(PARAMETER.length));
  try {
    sessionStorage.setItem(KEY, token);
  } catch {
    // without storage, the token does not survive a reload
  }
  return token;
}

/** Returns the token that an earlier load of this tab stored, or `null`. */
export function storedViewToken() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** Removes a token that meshkeep does not accept. */
export function forgetViewToken() {
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // there is none
  }
}
