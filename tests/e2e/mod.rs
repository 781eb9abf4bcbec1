//! The real binary against real etcds, as a user sees it.

mod bad_input;
mod big_values;
mod cache_ttl;
mod chaos;
mod clusters;
mod command_line;
mod compaction;
mod derived;
mod directory;
mod freshness;
mod harness_itself;
mod interrupted;
mod local_etcd;
mod losses;
mod namespaces;
mod output;
mod python_client;
mod remotes;
mod samples;
mod secrets;
mod shutdown;
mod store_command;
mod store_faults;
mod streams;
mod too_large;
mod whole_mesh;
