//! Power cuts on a real file system: ext4 on a loop device over a file in memory
//! (docs/develop/measurements.md §1.2).
//!
//! The test stops the writer and copies the file behind the device without a sync, so everything
//! that is only in the page cache is lost. The copy must have all acknowledged groups. The test
//! needs root and loop devices, so it runs only if the soak asks for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rand::Rng;

use super::crash::{child_command, contents_of_group, number_of};
use crate::store::tests::{open, read};

/// Environment variable with the number of power cuts. None if it is not set.
const CUTS: &str = "MESHKEEP_TEST_POWER_CUTS";

/// A mounted file system. Unmounted on drop.
struct MountedImage(PathBuf);

impl MountedImage {
    fn new(image: &Path, at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        run("mount", &["-o", "loop", text(image), text(at)]);
        Self(at.to_owned())
    }
}

impl Drop for MountedImage {
    fn drop(&mut self) {
        run("umount", &[text(&self.0)]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let cuts: u32 = std::env::var(CUTS).ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(0);
    for cut in 0..cuts {
        let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let (acknowledged, found) = cut_power(in_memory.path());
        println!("cut {cut}: acknowledged {acknowledged}, found {found}");
    }
}

fn cut_power(directory: &Path) -> (u64, u64) {
    let (image, copy) = (directory.join("image"), directory.join("copy"));
    fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    run("mkfs.ext4", &["-q", text(&image)]);
    let acknowledged = {
        let mounted = MountedImage::new(&image, &directory.join("mounted"));
        let mut child = child_command(Command::new(std::env::current_exe().unwrap()), &mounted.0, "write");
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut numbers = lines.filter_map(|line| line.strip_prefix("applied ")?.parse::<u64>().ok());
        let wanted = rand::rng().random_range(5..80);
        let mut acknowledged = numbers.by_ref().take(wanted).last().unwrap();
        // stops the writer at a random moment of the next group
        std::thread::sleep(Duration::from_micros(rand::rng().random_range(0..30_000)));
        run("kill", &["-STOP", &child.id().to_string()]);
        fs::copy(&image, &copy).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged = numbers.last().unwrap_or(acknowledged);
        acknowledged
    };
    let mounted = MountedImage::new(&copy, &directory.join("after"));
    let (store, opened) = open(&mounted.0);
    assert_eq!(opened.set_aside, None);
    let loaded = read(&store);
    let found = number_of(&loaded);
    assert!(found == acknowledged || found == acknowledged + 1, "found {found}, acknowledged {acknowledged}");
    assert!(loaded == contents_of_group(found), "the content is not that of group {found}");
    (acknowledged, found)
}
