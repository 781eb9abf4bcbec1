//! Limits that keep both APIs fair between clients.
//!
//! Identifies a [`Client`], limits its open [`Places`] (streams), runs long requests in turns of
//! the clients ([`Scans`]) and gives each client a share of a memory [`Budget`]. `api` and
//! `etcd_api` use it. They choose the error that a client gets when a limit is reached.

mod budget;
mod client;
mod places;
mod scans;
#[cfg(test)]
mod tests;
mod turns;

pub use budget::{Budget, Held, NoRoom, Share};
pub use client::Client;
pub use places::{Places, STREAM_COUNT_MAX, StreamPermit};
pub(crate) use scans::Scanner;
pub use scans::{Pace, Scans};
pub use turns::NoTurn;
