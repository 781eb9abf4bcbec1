//! Text for people: durations, escapes, secrets in URLs, system errors, and suggestions for
//! misspelt names.

pub(super) mod duration;
pub(super) mod printable;
pub(super) mod readable_error;
pub(super) mod secret_url;
pub(super) mod suggestion;
