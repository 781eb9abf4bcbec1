//! YAML that somebody else wrote: its size in values is bounded before any value of it is built.
//!
//! A megabyte of YAML can nest so deeply that a parser needs minutes for it, and its aliases can stand for more than any memory holds. [`check`]
//! goes through the parser's events, in time that grows with the length of the text alone, and stops at the first event over a limit. Only what has
//! passed is given to `serde_yaml_ng`. [`go::read`] builds the values itself, as the YAML of Cilium's agents does.

mod bounds;
pub(crate) mod go;
mod resolve;

pub(crate) use self::bounds::{Limits, YamlError, check};
