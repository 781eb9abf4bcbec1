//! Formats of the posts of `--on-problem`.

use crate::model::api_enum::api_enum;

api_enum! {
    /// Format of the posts of `--on-problem`.
    pub enum WebhookFormat {
        /// meshkeep's own JSON.
        Json = "json",
        /// Alerts for `/api/v2/alerts` of Prometheus' Alertmanager.
        Alertmanager = "alertmanager",
        /// CloudEvents 1.0 in structured content mode, with meshkeep's own JSON as data.
        CloudEvents = "cloudevents",
    }
}
