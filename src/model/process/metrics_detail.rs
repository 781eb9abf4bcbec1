//! Detail of `/metrics`.

use crate::model::api_enum::api_enum;

api_enum! {
    /// Detail of `/metrics`.
    pub enum MetricsDetail {
        /// For each cluster only what the alerts and the dashboard need.
        Default = "default",
        /// Every metric, and one series for each kind of each cluster.
        Full = "full",
    }
}
