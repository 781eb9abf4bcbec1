//! Conversion of the state of `meshkeep reflect`, which writes the mirror into another etcd.

use crate::dto::reflection::ReflectionStatus;
use crate::dto::text::{rfc3339, seconds};
use crate::handle::Reflection;

impl From<Reflection> for ReflectionStatus {
    fn from(reflection: Reflection) -> Self {
        let (last_error, time) = reflection.last_error.unzip();
        Self {
            leader: reflection.is_leader,
            clusters: reflection.clusters as u64,
            waiting: reflection.waiting as u64,
            lag_seconds: seconds(reflection.lag),
            written: reflection.written,
            deleted: reflection.deleted,
            failed: reflection.failed,
            error: reflection.error,
            last_error,
            last_error_time: time.map(rfc3339),
        }
    }
}
