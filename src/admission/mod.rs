//! Fairness between clients, for every face that is served: who counts as one, whose turn it is where something takes long, and how much memory and how many
//! streams each may have. One client gets its share, whatever it asks for, and leaves the others theirs.
//!
//! Owns: the bounds and who is next. Deliberately lacks: any protocol. The faces (`api`, `etcd_api`) choose the error of a client that gets no permit.

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
