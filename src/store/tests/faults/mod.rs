//! Faults: kills, power cuts, full disks, damage and foreign files.

mod crash;
pub(super) mod damage;
mod foreign;
mod full;
mod power;
mod set_aside;
