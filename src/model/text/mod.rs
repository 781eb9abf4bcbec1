//! Text for people: escapes, secrets in URLs, errors of the system, and the name that was probably meant.

pub(super) mod in_words;
pub(super) mod nearest;
pub(super) mod printable;
pub(super) mod secret_url;
