//! Checks of names in filters: a filter compares whole names, never patterns.

/// Characters that occur in patterns but in no name in Kubernetes (`IsDNS1123Subdomain`,
/// `k8s.io/apimachinery/pkg/util/validation`).
const PATTERN_CHARACTERS: [char; 10] = ['*', '?', '[', ']', '{', '}', '^', '$', '|', '\\'];

/// Error for a pattern instead of a name. The caller writes `NAME: ` before the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is a pattern (names have no {character:?}), but names must be exact: use the full name, or a label selector")]
pub struct PatternForName {
    text: String,
    character: char,
}

/// Refuses a pattern instead of a name: compared as a name it would match nothing.
///
/// # Errors
/// [`PatternForName`].
pub fn check_exact_name(text: &str) -> Result<(), PatternForName> {
    match text.chars().find(|character| PATTERN_CHARACTERS.contains(character)) {
        Some(character) => Err(PatternForName { text: text.to_owned(), character }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_refused() {
        for name in ["cart", "paris-worker-1.example.com", "Worker_1", "kube-dns.kube-system", "ä"] {
            assert_eq!(check_exact_name(name), Ok(()), "{name}");
        }
        for text in ["car*", "*", "ca?t", "c[a]rt", "{cart,till}", "^cart", "cart$", "cart|till", "car\\w"] {
            let refused = check_exact_name(text).map_err(|error| error.to_string()).unwrap_err();
            assert!(refused.contains("names must be exact"), "{refused}");
        }
    }
}
