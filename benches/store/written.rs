//! The amount of written data: bytes that the disk received, and bytes that the kernel counts for
//! the process.
//!
//! The kernel counts dirty memory of the process in whole folios, of which the disk only gets the
//! dirty part. With large folios (ext4 since Linux 6.16) it counts at least twice as much as the
//! disk gets. The disk's bytes include the file system's journal and the writes of other processes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{Outcome, field, ratio};

/// Unit in which the kernel counts sectors, whatever the disk has (Documentation/block/stat.rst).
const SECTOR_BYTES: u64 = 512;

/// Counters of written bytes.
pub(crate) struct WriteCounters {
    /// Bytes that the kernel counts for this process.
    counted: u64,
    /// Bytes that the disk received, if the directory is on one.
    device: Option<u64>,
}

impl WriteCounters {
    pub(crate) fn now(directory: &Path) -> Outcome<Self> {
        Ok(Self { counted: field("/proc/self/io", "write_bytes:")?, device: device_bytes(directory) })
    }

    /// Describes the bytes written since [`now`](Self::now), compared with `raw` bytes of changes.
    /// Subtracts `others`, the bytes that this process wrote outside of the store. The kernel
    /// counts more than that for them.
    pub(crate) fn describe(&self, directory: &Path, raw: u64, others: u64) -> Outcome<String> {
        let now = Self::now(directory)?;
        let counted = (now.counted - self.counted).saturating_sub(others);
        let device = now.device.zip(self.device).map(|(now, before)| (now - before).saturating_sub(others));
        let device = device
            .map_or_else(|| "an unknown amount".to_owned(), |device| format!("{} MB ({:.2} of raw)", device >> 20, ratio(device, raw)));
        Ok(format!(
            "written for {} MB: {device} at the device, {} MB ({:.2}) as the kernel counts",
            raw >> 20,
            counted >> 20,
            ratio(counted, raw)
        ))
    }
}

fn device_bytes(directory: &Path) -> Option<u64> {
    let device = fs::metadata(directory).ok()?.dev();
    // makedev(3)
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff_ff00);
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    Some(text.split_whitespace().nth(6)?.parse::<u64>().ok()? * SECTOR_BYTES)
}
