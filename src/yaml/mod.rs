//! Readers of untrusted YAML: a text is checked against limits before any value is built from it.
//!
//! A megabyte of YAML can nest so deeply that a parser needs minutes for it, and its aliases can
//! expand to more than fits in memory. [`check`] reads the parser's events in linear time and stops
//! at the first event over a limit; `serde_yaml_ng` gets only texts that passed this check.
//! [`go::read`] builds the values itself, as the YAML library of Cilium's agents does.

mod bounds;
pub(crate) mod go;
mod resolve;

pub(crate) use self::bounds::{Limits, YamlError, check};
