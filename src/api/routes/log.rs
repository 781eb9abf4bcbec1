//! Route of the newest log lines.

use axum::Json;
use axum::extract::State;

use crate::api::query::{NoQuery, Parameters};
use crate::api::state::ApiState;
use crate::dto::log::Log;

/// The newest lines of the log.
///
/// The last 1,000 lines that meshkeep wrote to standard error. Secrets are never logged.
/// Available while the store is loading.
#[utoipa::path(get, path = "/v1/log", operation_id = "getLog", tag = "status",
    responses((status = 200, description = "The lines.", body = Log)))]
pub(crate) async fn get_log(State(state): State<ApiState>, _: Parameters<NoQuery>) -> Json<Log> {
    let (lines, omitted) = state.handle.log_lines();
    Json(Log { lines, omitted })
}
