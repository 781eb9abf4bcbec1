//! Joins lists of words for messages.

/// Joins words with commas and a final "and".
pub(crate) fn join_names(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
