//! What looks wrong.

use crate::dto::problems::Finding;
use crate::model::ToldFinding;

impl From<ToldFinding> for Finding {
    fn from(told: ToldFinding) -> Self {
        let ToldFinding { id, kind, severity, clusters, detail, advice, since, count, key } = told;
        let cluster = match clusters.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        Self { id, kind: kind.into(), severity: severity.api_name().into(), cluster, clusters, detail, advice, since, count, key }
    }
}

impl From<&ToldFinding> for Finding {
    fn from(told: &ToldFinding) -> Self {
        told.clone().into()
    }
}
