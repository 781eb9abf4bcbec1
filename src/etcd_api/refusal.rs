//! etcd's own errors, word for word (`api/v3rpc/rpctypes/error.go`), as clients compare them.

use tonic::{Code, Status};

use crate::model::RangeOutcome;

const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";

/// What an error says of the range that it answers.
pub(super) fn outcome(error: &Status) -> RangeOutcome {
    match error.code() {
        Code::OutOfRange if error.message() == FUTURE => RangeOutcome::Future,
        Code::OutOfRange => RangeOutcome::Compacted,
        Code::PermissionDenied => RangeOutcome::Denied,
        Code::InvalidArgument | Code::Unimplemented => RangeOutcome::Invalid,
        Code::ResourceExhausted => RangeOutcome::Crowded,
        Code::Unavailable => RangeOutcome::Unavailable,
        _ => RangeOutcome::Failed,
    }
}

pub(super) fn loading() -> Status {
    Status::unavailable("etcdserver: the store is still loading: try again in a moment")
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
    Status::out_of_range(FUTURE)
}

pub(super) fn too_many_requests() -> Status {
    Status::resource_exhausted("etcdserver: too many requests")
}

pub(super) fn given_up() -> Status {
    Status::cancelled("the client is gone")
}
