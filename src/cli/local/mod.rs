//! Commands that start a sidecar, and commands that need none.

pub(super) mod completion;
pub(super) mod demo;
pub(super) mod doctor;
pub(super) mod kubectl;
pub(super) mod load;
pub(super) mod manual;
pub(super) mod openapi;
pub(super) mod serve;
#[cfg(test)]
mod settings_page;
pub(super) mod store;
