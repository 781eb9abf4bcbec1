//! Replaces the API's paths in messages with commands. The API's errors, warnings and advice name
//! its paths, such as `/v1/nodes`; the user of the command line needs the command.

/// Routes below `/v1`, each with the command that prints the answer. The first match counts, so
/// `ipcache/lookup` precedes `ipcache`.
const COMMANDS: [(&str, &str); 21] = [
    ("changes", "watch"),
    ("clusters", "get clusters"),
    ("config", "config"),
    ("endpoint-slices", "get endpoint-slices"),
    ("entries", "entries"),
    ("events", "watch"),
    ("explain", "explain"),
    ("global-services", "get global-services"),
    ("history", "history"),
    ("identities", "get identities"),
    ("impact", "impact"),
    ("ipcache/lookup", "lookup"),
    ("ipcache", "get ipcache"),
    ("log", "log"),
    ("nodes", "get nodes"),
    ("problems", "problems"),
    ("rejected", "rejected"),
    ("service-exports", "get service-exports"),
    ("services", "get services"),
    ("status", "status"),
    ("verifications", "verify"),
];

/// Terms of the API in its messages, each with the term of the command line.
const TERMS: [(&str, &str); 4] = [
    ("is not a parameter of this path", "is not a filter of this list"),
    ("this path has ", "this list has "),
    ("needs from=CLUSTER", "needs --from CLUSTER"),
    ("/openapi.json lists", "`meshkeep openapi` lists"),
];

/// Start of a path of the API.
const API: &str = "/v1/";

/// Replaces the API's paths in a message with commands: `/v1/nodes lists all nodes` becomes
/// `` `meshkeep get nodes` lists all nodes``.
pub(in crate::cli) fn name_commands(message: &str) -> String {
    let message =
        TERMS.iter().fold(message.to_owned(), |text, (term, own)| if text.contains(term) { text.replace(term, own) } else { text });
    replace_paths(&message, |path| command(path).map(|command| format!("`meshkeep {command}`")))
}

/// Replaces the API's paths in a message. `name` returns the replacement of a path below `/v1/`, or
/// `None` if it stays.
pub(in crate::cli) fn replace_paths(message: &str, name: impl Fn(&str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::with_capacity(message.len()), message);
    while let Some(start) = rest.find(API) {
        let (before, from_path) = rest.split_at(start);
        out.push_str(before);
        let end = from_path.find(|letter: char| letter.is_whitespace() || ",;)\"`".contains(letter)).unwrap_or(from_path.len());
        let path = from_path[..end].trim_end_matches([':', '.']);
        // keys contain `/v1/` too
        let is_path = before.is_empty() && out.is_empty() || before.ends_with([' ', '(', '\n']);
        out.push_str(&name(&path[API.len()..]).filter(|_| is_path).unwrap_or_else(|| path.to_owned()));
        rest = &from_path[path.len()..];
    }
    out + rest
}

/// Returns the arguments of the command for a path below `/v1/`.
fn command(path: &str) -> Option<String> {
    let (route, query) = path.split_once('?').unwrap_or((path, ""));
    let is_route = |name: &str| route.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let (name, command) = COMMANDS.iter().find(|(name, _)| is_route(name))?;
    let object = route[name.len()..].trim_matches('/');
    let mut words = vec![(*command).to_owned()];
    words.extend(Some(object.to_owned()).filter(|object| !object.is_empty()));
    words.extend(query.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, value)| match name {
        // without a value, the user has to add one
        "prefix" | "ip" if value.is_empty() => name.to_uppercase(),
        "prefix" | "ip" => value.to_owned(),
        "cluster" | "namespace" => format!("--{name} {value}"),
        "labelSelector" => format!("-l {value}"),
        _ => format!("--filter {name}={value}"),
    }));
    Some(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_commands() {
        for (message, expected) in [
            (
                "cluster paris has no node nope: /v1/nodes lists all nodes",
                "cluster paris has no node nope: `meshkeep get nodes` lists all nodes",
            ),
            (
                "there is no key a: /v1/entries?prefix= lists the keys below a prefix",
                "there is no key a: `meshkeep entries PREFIX` lists the keys below a prefix",
            ),
            (
                "no cluster has an entry 10.0.0.0/24: /v1/ipcache/lookup?ip= returns the entry that covers an address",
                "no cluster has an entry 10.0.0.0/24: `meshkeep lookup IP` returns the entry that covers an address",
            ),
            ("/v1/rejected?cluster=paris lists them with the reasons", "`meshkeep rejected --cluster paris` lists them with the reasons"),
            ("/v1/global-services/shop/cart lists every conflict", "`meshkeep get global-services shop/cart` lists every conflict"),
            (
                "check what wrote cilium/cluster-config/paris (/v1/rejected has its value)",
                "check what wrote cilium/cluster-config/paris (`meshkeep rejected` has its value)",
            ),
            ("see /v1/clusters.", "see `meshkeep get clusters`."),
            ("a.\n/v1/problems, /v1/log; /v1/status", "a.\n`meshkeep problems`, `meshkeep log`; `meshkeep status`"),
            ("/v1/ipcache?cidr=10.0.0.0/8 lists", "`meshkeep get ipcache --filter cidr=10.0.0.0/8` lists"),
            (
                "colour: is not a parameter of this path: this path has cluster",
                "colour: is not a filter of this list: this list has cluster",
            ),
            // keys and paths that no command has
            ("cilium/cache/nodes/v1/paris/a and k8s:a=/v1/nodes stay", "cilium/cache/nodes/v1/paris/a and k8s:a=/v1/nodes stay"),
            ("/v1/nodesets and /v1/tomorrow stay", "/v1/nodesets and /v1/tomorrow stay"),
        ] {
            assert_eq!(name_commands(message), expected);
        }
    }
}
