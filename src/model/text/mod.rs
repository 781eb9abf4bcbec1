//! Text for people: escapes, secrets in URLs, system errors, and suggestions for misspelt names.

pub(super) mod in_words;
pub(super) mod nearest;
pub(super) mod printable;
pub(super) mod secret_url;
