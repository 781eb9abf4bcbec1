//! JSON shape of Prometheus' HTTP service discovery.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// A target group, as Prometheus' `http_sd_configs` reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TargetGroup {
    /// The target as `address:port`. A group has exactly one.
    pub(crate) targets: Vec<String>,
    /// Labels of the target. Their names begin with `__meta_meshkeep_`.
    pub(crate) labels: BTreeMap<String, String>,
}
