//! The only integration test binary: one module per topic, and the harness that all of them share.

#[cfg(test)]
mod allocator;
#[cfg(test)]
mod attack;
#[cfg(test)]
mod e2e;
#[cfg(test)]
mod etcd_api;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod kvstore;
#[cfg(test)]
mod page;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod stream_clients;
#[cfg(test)]
mod tidy;
