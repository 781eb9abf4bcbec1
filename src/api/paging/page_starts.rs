//! Short tokens for long page starts. A page token contains the key or text that its page begins
//! with, and a remote cluster decides how long that is.
//!
//! A text of up to 192 bytes is part of its token. For a longer text, the token has a hash, and
//! this process remembers the text: the newest 4,096 texts, at most 16 MiB. If a hash is no longer
//! known, the client has to begin its list again. Real clusters rarely need this: Cilium's longest
//! keys have less than 700 bytes, and most have less than 150.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// Maximum length of a text that is part of its token, in bytes. With position, fingerprint and
/// base64, a token stays below 512 characters.
const INLINE_BYTES_MAX: usize = 192;

/// Maximum number of remembered texts.
const TEXTS_MAX: usize = 4_096;

/// Maximum size of all remembered texts, in bytes. A single text above this size is not remembered.
const BYTES_MAX: usize = 16 << 20;

/// Marks a text that is part of the token.
const INLINE: char = '=';

/// Marks the hash of a text.
const HASHED: char = '#';

/// Long page starts of this process. A hash identifies its text, so all lists and servers can share
/// the table.
pub(crate) static PAGE_STARTS: PageStarts = PageStarts::new(TEXTS_MAX, BYTES_MAX);

/// Long page starts by hash, newest last.
#[derive(Debug)]
pub(crate) struct PageStarts {
    stored: Mutex<StoredTexts>,
    texts_max: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct StoredTexts {
    texts: VecDeque<(String, String)>,
    bytes: usize,
}

impl PageStarts {
    const fn new(texts_max: usize, bytes_max: usize) -> Self {
        Self { stored: Mutex::new(StoredTexts { texts: VecDeque::new(), bytes: 0 }), texts_max, bytes_max }
    }

    /// Returns a short form of a text, for a token.
    pub(crate) fn shorten(&self, text: &str) -> String {
        if text.len() <= INLINE_BYTES_MAX {
            return format!("{INLINE}{text}");
        }
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(text));
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        stored.remove(&hash);
        stored.bytes += text.len();
        stored.texts.push_back((hash.clone(), text.to_owned()));
        while stored.texts.len() > self.texts_max || stored.bytes > self.bytes_max {
            let Some((_, oldest)) = stored.texts.pop_front() else { break };
            stored.bytes -= oldest.len();
        }
        format!("{HASHED}{hash}")
    }

    /// Returns the text of a short form; `None` if this process does not remember it.
    pub(crate) fn expand(&self, short: &str) -> Option<String> {
        if let Some(text) = short.strip_prefix(INLINE) {
            return Some(text.to_owned());
        }
        let hash = short.strip_prefix(HASHED)?;
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        stored.texts.iter().rev().find(|(known, _)| known == hash).map(|(_, text)| text.clone())
    }
}

impl StoredTexts {
    fn remove(&mut self, hash: &str) {
        if let Some(index) = self.texts.iter().position(|(known, _)| known == hash)
            && let Some((_, text)) = self.texts.remove(index)
        {
            self.bytes -= text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_have_short_tokens() {
        let starts = PageStarts::new(8, 1 << 20);
        for length in [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 4_096, 100_000] {
            let text = "k".repeat(length);
            let short = starts.shorten(&text);
            assert!(short.len() <= INLINE_BYTES_MAX + 1, "{length}: {}", short.len());
            assert_eq!(starts.expand(&short), Some(text));
        }
        for unknown in ["", "k", "#", "#abc"] {
            assert_eq!(starts.expand(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn the_oldest_texts_are_forgotten_beyond_the_bounds() {
        let starts = PageStarts::new(2, 1_000);
        let text = |letter: &str, length: usize| letter.repeat(length);
        let [a, b, c] = ["a", "b", "c"].map(|letter| starts.shorten(&text(letter, 300)));
        assert_eq!((starts.expand(&a), starts.expand(&b).is_some(), starts.expand(&c).is_some()), (None, true, true));
        // b is used again, so it is now the newest
        starts.shorten(&text("b", 300));
        let d = starts.shorten(&text("d", 600));
        assert_eq!((starts.expand(&c), starts.expand(&b).is_some(), starts.expand(&d).is_some()), (None, true, true));
        assert_eq!(starts.expand(&starts.shorten(&text("e", 1_001))), None);
        let stored = starts.stored.lock().unwrap();
        assert_eq!(stored.bytes, stored.texts.iter().map(|(_, text)| text.len()).sum::<usize>());
    }
}
