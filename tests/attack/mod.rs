//! Attacks that `scripts/attack` runs at full size, and the tests as small ones.

mod client_files;
mod etcd_face;
mod lists;
mod strangers;
