//! JSON shape of the newest log lines.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The newest lines of the log.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Log {
    /// The lines as they were written, without colours, the oldest first. At most 1,000 lines and 1
    /// MiB; at most 4 KiB per line.
    pub(crate) lines: Vec<String>,
    /// Number of older lines since the start that are omitted.
    pub(crate) omitted: u64,
}
