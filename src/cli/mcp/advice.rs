//! Errors for assistants. An assistant can call tools. It can neither run commands nor change the
//! options with which its user started the server.

use crate::cli::terminal::route_commands::replace_paths;

/// Routes below `/v1` with the tool that sends the same request. The first match counts.
const TOOLS: [(&str, &str); 5] =
    [("explain", "explain"), ("history", "history"), ("ipcache/lookup", "lookup"), ("problems", "problems"), ("status", "status")];

/// Parts of a message that name an option or a command.
const FOR_USERS: [&str; 2] = [" --", "`meshkeep "];

/// Separators before advice in a message.
const SEPARATORS: [&str; 3] = [": ", "; ", " ("];

/// Advice in place of one that only the user can follow.
const ASK_USER: &str = "ask the user to check the options of meshkeep and of this MCP server, and that meshkeep runs";

/// Returns the message of an error for an assistant.
pub(super) fn for_assistant(message: &str) -> String {
    let message = replace_paths(message, |path| {
        let route = path.split('?').next().unwrap_or_default();
        let is_route = |name: &str| route.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        TOOLS.iter().find(|(name, _)| is_route(name)).map(|(_, tool)| format!("the tool {tool}"))
    });
    let names_option = message.starts_with("--").then_some(0);
    let Some(advice) = names_option.into_iter().chain(FOR_USERS.iter().filter_map(|part| message.find(part))).min() else { return message };
    let fact = SEPARATORS.iter().filter_map(|separator| message[..advice].rfind(separator)).max();
    let fact = match fact {
        Some(end) => &message[..end],
        // a message about the value of an option begins with the option
        None if message.starts_with("--") => "the connection options of this server cannot be used",
        None => &message,
    };
    format!("{fact}: {ASK_USER}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_that_only_the_user_can_follow_is_replaced() {
        for (message, fact) in [
            (
                "no meshkeep at 127.0.0.1:1 (connection refused): start one with `meshkeep serve`, or give another address with --server",
                "no meshkeep at 127.0.0.1:1 (connection refused)",
            ),
            ("this request needs a token (give the token with --token-file)", "this request needs a token"),
            (
                "the certificate of https://a is not trusted: no trusted authority signed it; give the certificate of its authority with --ca-file",
                "the certificate of https://a is not trusted: no trusted authority signed it",
            ),
            ("meshkeep keeps no history: start it without --history off", "meshkeep keeps no history"),
            ("--token-file /t: No such file or directory", "the connection options of this server cannot be used"),
        ] {
            assert_eq!(for_assistant(message), format!("{fact}: {ASK_USER}"));
        }
        for (message, expected) in [
            ("severity: use critical, warning or info", "severity: use critical, warning or info"),
            ("ip: \"--a\" is not an IP address", "ip: \"--a\" is not an IP address"),
            ("there is no kind a: /v1/problems lists all kinds", "there is no kind a: the tool problems lists all kinds"),
            ("there is no cluster a, /v1/clusters lists all clusters", "there is no cluster a, /v1/clusters lists all clusters"),
        ] {
            assert_eq!(for_assistant(message), expected);
        }
    }
}
