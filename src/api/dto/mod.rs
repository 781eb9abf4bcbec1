//! Conversion of readings to the answers of the API (`crate::dto`).

pub(crate) mod config;
pub(crate) mod exports;
pub(crate) mod global_services;
pub(crate) mod history;
pub(crate) mod last_change;
pub(crate) mod lookup;
pub(crate) mod meta;
pub(crate) mod objects;
pub(crate) mod raw;
pub(crate) mod reflection;
pub(crate) mod reserved;
pub(crate) mod status;
pub(crate) mod streamed;
pub(crate) mod verification;
