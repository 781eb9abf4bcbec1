//! What was logged lately.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The newest lines of the log.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Log {
    /// The lines as they were written, without colours, the oldest first: 1,000 and 1 MiB at most, each of 4 KiB at most.
    pub(crate) lines: Vec<String>,
    /// How many older lines there were since the start.
    pub(crate) left_out: u64,
}
