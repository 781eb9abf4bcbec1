//! Suggestions for misspelt names.

/// Maximum number of letters that may differ in a misspelt word. In a short word, at most a third
/// of its letters may differ.
const DIFFERENCES_MAX: usize = 2;

/// Returns the known word that is most similar to a misspelt word; `None` if none is similar.
#[must_use]
pub fn suggest_word<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = plain(word);
    // no known word is this long, and the comparison would be slow
    if word.len() > 64 {
        return None;
    }
    let max = DIFFERENCES_MAX.min(word.len() / 3);
    let near = words
        .into_iter()
        .map(|candidate| (strsim::levenshtein(&word, &plain(candidate)), candidate))
        .filter(|(differences, _)| *differences <= max);
    near.min_by_key(|(differences, _)| *differences).map(|(_, candidate)| candidate)
}

/// Removes case and separators, which vary between spellings.
fn plain(word: &str) -> String {
    word.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_words_are_suggested() {
        let words = ["nodes", "services", "global-services", "cluster", "labelSelector", "maxAge"];
        for (word, expected) in [
            ("node", Some("nodes")),
            ("Nodes", Some("nodes")),
            ("globalservices", Some("global-services")),
            ("clusters", Some("cluster")),
            ("label_selector", Some("labelSelector")),
            ("max-age", Some("maxAge")),
            ("colour", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(suggest_word(word, words), expected, "{word}");
        }
        assert_eq!(suggest_word(&"n".repeat(100_000), words), None);
    }
}
