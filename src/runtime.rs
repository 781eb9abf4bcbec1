//! PLACEHOLDER on this branch only: the composition root is written elsewhere.

use crate::config::Settings;

/// Serves until told to stop.
///
/// # Errors
/// Whatever keeps it from starting or going on.
pub async fn run(settings: Settings) -> std::io::Result<()> {
    tracing::info!(?settings, "nothing to run yet");
    Ok(())
}

/// The OpenAPI document.
#[must_use]
pub fn openapi_document() -> String {
    "{}".to_owned()
}
