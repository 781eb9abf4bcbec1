//! Bench of the change stream, with ratios to bare programs in the same run: `cargo bench -- stream
//! [figure…]`.
//!
//! Each figure runs its servers and its load in separate processes (this binary in several roles),
//! so that a server's CPU time is its own. It prints the measurements with the size of the data and
//! the target. There are no thresholds.

mod bare;
mod child;
mod figures;
mod load;
mod put_to_event;
mod server;

use crate::processes::{Outcome, sized};

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let (role, arguments) = words.split_first().map_or(("", words), |(first, rest)| (first.as_str(), rest));
    match role {
        "role:server" => server::run(),
        "role:bare" => bare::run(),
        "role:load" => load::run(arguments),
        _ => figures::run(words),
    }
}
