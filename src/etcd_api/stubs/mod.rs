//! Services that need no keys: leases, maintenance, members and users.

pub(super) mod auth;
mod lease;
mod maintenance;
