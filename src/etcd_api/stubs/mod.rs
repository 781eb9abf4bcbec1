//! Services that need no keys: leases, maintenance, members and users.

mod lease;
mod maintenance;
pub(super) mod no_users;
