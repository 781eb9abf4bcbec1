//! Words that are nearly right: the one of those that are known that was probably meant.

/// How many letters may differ in a word that is taken for a slip of the fingers: two, and no more than a third of it.
const DIFFERENCES_MAX: usize = 2;

/// The word of these that is nearest to one that is none of them, if any is near.
#[must_use]
pub fn nearest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = plain(word);
    // what is longer than any of ours is no slip, and would take time
    if word.len() > 64 {
        return None;
    }
    let max = DIFFERENCES_MAX.min(word.len() / 3);
    let near = words.into_iter().map(|one| (differences(&word, &plain(one)), one)).filter(|(differences, _)| *differences <= max);
    near.min_by_key(|(differences, _)| *differences).map(|(_, one)| one)
}

/// Without what people write in one way or the other.
fn plain(word: &str) -> Vec<u8> {
    word.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| byte.to_ascii_lowercase()).collect()
}

/// How many letters have to be put in, taken out or changed to make one word of the other (Levenshtein).
fn differences(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (place, letter) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = place + 1;
        for (column, same) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != same);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_fingers_are_recognised_and_other_words_are_not() {
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
            assert_eq!(nearest(word, words), expected, "{word}");
        }
        assert_eq!(nearest(&"n".repeat(100_000), words), None);
    }
}
