//! Names the commit that a release is built from, for `meshkeep --version`: `MESHKEEP_COMMIT` says it where there is no repository, as in an image's
//! build; else git does. Other builds name none, so that they are not compiled anew for each commit.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=MESHKEEP_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var("MESHKEEP_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| (std::env::var("PROFILE").as_deref() == Ok("release")).then(newest_commit).flatten());
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let shown = commit.map_or_else(|| version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=MESHKEEP_VERSION={shown}");
}

/// The short hash and the date of the newest commit; `None` without git or a repository.
fn newest_commit() -> Option<String> {
    println!("cargo:rerun-if-changed=.git/logs/HEAD");
    let output = Command::new("git").args(["log", "-1", "--format=%h, %cs"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
}
