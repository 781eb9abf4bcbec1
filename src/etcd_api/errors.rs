//! Errors with etcd's exact messages (`api/v3rpc/rpctypes/error.go`), because clients compare them.

use std::fmt;

use tonic::{Code, Status};

use crate::admission::BudgetExceeded;
use crate::instruments::RangeOutcome;

const FUTURE_REVISION: &str = "etcdserver: mvcc: required revision is a future revision";

/// Maps the error of a range request to its outcome in the metrics.
pub(super) fn range_outcome(error: &Status) -> RangeOutcome {
    match error.code() {
        Code::OutOfRange if error.message() == FUTURE_REVISION => RangeOutcome::Future,
        Code::OutOfRange => RangeOutcome::Compacted,
        Code::PermissionDenied => RangeOutcome::Denied,
        Code::InvalidArgument | Code::Unimplemented => RangeOutcome::Invalid,
        Code::ResourceExhausted => RangeOutcome::Throttled,
        Code::Unavailable => RangeOutcome::Unavailable,
        _ => RangeOutcome::Failed,
    }
}

pub(super) fn loading() -> Status {
    Status::unavailable("etcdserver: the store is still loading: try again in a few seconds")
}

pub(super) fn stopping() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

pub(super) fn permission_denied() -> Status {
    Status::permission_denied("etcdserver: permission denied")
}

pub(super) fn empty_key() -> Status {
    Status::invalid_argument("etcdserver: key is not provided")
}

pub(super) fn invalid_sort_option() -> Status {
    Status::invalid_argument("etcdserver: invalid sort option")
}

pub(super) fn too_many_operations() -> Status {
    Status::invalid_argument("etcdserver: too many operations in txn request")
}

pub(super) fn compacted() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision has been compacted")
}

pub(super) fn future_revision() -> Status {
    Status::out_of_range(FUTURE_REVISION)
}

/// Returns the error for a client whose unread answers have used up their memory budget.
pub(super) fn response_budget_exhausted(exhausted: BudgetExceeded) -> Status {
    resource_exhausted(&match exhausted {
        BudgetExceeded::PerClient => "the unread answers of this client reach the limit: read them, or request less at once",
        BudgetExceeded::Total => "the unread answers of all clients reach the limit: try again in a few seconds",
    })
}

/// Returns `ResourceExhausted` with the limit that was reached.
pub(super) fn resource_exhausted(reason: &dyn fmt::Display) -> Status {
    Status::resource_exhausted(format!("etcdserver: too many requests: {reason}"))
}

/// Returns the error for a transaction whose whole tree has too many operations. etcd itself limits
/// only each path.
pub(super) fn txn_tree_too_large(operations_max: usize) -> Status {
    Status::invalid_argument(format!(
        "etcdserver: too many operations in txn request: a transaction may have {operations_max} comparisons and operations, including those of inner transactions"
    ))
}

/// Returns the error for a client whose incomplete requests have used up their memory budget.
pub(super) fn request_budget_exhausted(exhausted: BudgetExceeded) -> Status {
    resource_exhausted(&match exhausted {
        BudgetExceeded::PerClient => "the incomplete requests of this client reach the limit: finish them, or send less at once",
        BudgetExceeded::Total => "the incomplete requests of all clients reach the limit: try again in a few seconds",
    })
}

pub(super) fn request_too_large() -> Status {
    Status::invalid_argument("etcdserver: request is too large")
}
