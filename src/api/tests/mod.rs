//! The face over a small mesh of two clusters, without etcd and without a store.

mod answers;
mod caching;
mod changes;
mod connections;
mod crowd;
mod decoded;
mod disconnect;
mod documents;
mod errors;
mod fields;
pub(super) mod fixture;
mod forms;
mod global_services;
mod health_listen;
mod identities;
mod lines;
mod meta;
mod metrics;
mod pages;
mod paging;
mod probes;
mod problems;
mod rereading;
mod serving;
mod shared;
mod streams;
mod token;
