//! Segments: immutable files with the records that were replaced in a range of sequences.
//!
//! A segment is the text `meshkeep history 1`, then blocks of rows (`block`), blocks of times
//! (`times`), a filter (`filter`), an index, and a fence with a tail (`fence`). Rows have the order
//! of `row_key`. Every part has its own checksum, so a query checks what it reads.
//!
//! The index is a part with `varint` count of blocks · for each `bytes` key of its first row ·
//! `varint` rows, position and length · `varint` count of time blocks · for each `varint` first
//! sequence · (8) earliest time · (8) latest time · `varint` position and length.

pub(super) mod block;
pub(super) mod fence;
pub(super) mod filter;
pub(super) mod reader;
pub(super) mod row_key;
pub(super) mod search;
pub(super) mod times;
pub(super) mod writer;
