//! Route of the settings in use.

use axum::Json;
use axum::extract::State;

use crate::api::query::{NoQuery, Parameters};
use crate::api::state::ApiState;
use crate::dto::config::Config;

/// The settings in use, and where each comes from.
///
/// Secrets are left out. Available while the store is loading.
#[utoipa::path(get, path = "/v1/config", operation_id = "getConfig", tag = "status",
    responses((status = 200, description = "The settings.", body = Config)))]
pub(crate) async fn get_config(State(state): State<ApiState>, _: Parameters<NoQuery>) -> Json<Config> {
    Json(Config::from(state.handle.settings()))
}
