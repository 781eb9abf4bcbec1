//! The output of `meshkeep announce --dry-run`: the keys and values that would be written, computed
//! without an etcd.

use std::path::PathBuf;

use super::announcer::AnnounceError;
use super::files::read_files;
use super::plan::Resource;
use crate::wire::keys::HEARTBEAT;

/// Placeholder for the time in a heartbeat or a canary.
const TIME: &str = "<time>";

/// Returns every key and value that the files lead to, in the order in which they are written.
/// Blocks.
///
/// The identity numbers are examples, the first ones of the cluster's range: an allocator chooses
/// free ones.
///
/// # Errors
/// [`AnnounceError::Files`].
pub fn dry_run(files: &[PathBuf]) -> Result<Vec<(String, String)>, AnnounceError> {
    let plan = read_files(files).map_err(AnnounceError::Files)?;
    let first = u32::try_from(plan.range().min().number()).unwrap_or_default();
    let numbers = plan.identities().into_iter().zip(first..).collect();
    let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
    let (config, config_value) = plan.config();
    let entries = Resource::ALL.into_iter().flat_map(|resource| plan.keys(resource, &numbers));
    let canaries = Resource::ALL.into_iter().map(|resource| (plan.canary(resource), TIME.to_owned()));
    let all = std::iter::once((HEARTBEAT.to_owned(), TIME.to_owned())).chain(entries.map(|(key, value)| (key, text(value))));
    Ok(all.chain(canaries).chain([(config, text(config_value))]).collect())
}
