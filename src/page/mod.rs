//! The page at `/`: its files, which are in the binary, and the addresses under which they never change.
//!
//! Owns: the files of `assets/`, plain ES modules that a browser loads as they stand here. All of them are below one address that is made of
//! the content of all, so that a browser may keep them for good, modules name each other by relative paths, and none meets one of another
//! version. `assets/vendor` has what others wrote, as they published it (a test holds its hash). Deliberately lacks: HTTP, and data: the page
//! asks the API as anybody could.

use std::fmt::Write as _;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// What a browser may do with the page: nothing comes from elsewhere or goes there, no script or style stands in a document, and no text
/// becomes markup (`require-trusted-types-for`), whatever a mesh announces.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// How many characters of the hash stand in the address: 64 bits tell any two versions from each other.
const VERSION_LENGTH: usize = 16;

/// One file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Its path below `assets/`.
    pub name: &'static str,
    /// All of it.
    pub text: &'static str,
}

macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        [$(Asset { name: $name, text: include_str!(concat!("assets/", $name)) }),*]
    };
}

/// All files but the page itself.
pub static ASSETS: [Asset; 22] = assets![
    "api.js",
    "frame.js",
    "html.js",
    "icon.svg",
    "main.js",
    "meant.js",
    "mirror.js",
    "parts.css",
    "parts/changes.js",
    "parts/empty.js",
    "parts/explain.js",
    "parts/find.js",
    "parts/mesh.js",
    "parts/problems.js",
    "parts/services.js",
    "route.js",
    "search.js",
    "style.css",
    "vendor/htm.LICENSE",
    "vendor/preact.LICENSE",
    "vendor/preact.js",
    "words.js",
];

/// The page without the addresses of its files.
const TEMPLATE: &str = include_str!("assets/index.html");

impl Asset {
    /// What it is to a browser.
    #[must_use]
    pub fn media_type(&self) -> &'static str {
        match self.name.rsplit_once('.') {
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        }
    }
}

/// What all files are below: made of their names and contents.
#[must_use]
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut digest = Sha256::new();
        for asset in &ASSETS {
            for part in [asset.name, asset.text] {
                digest.update(part.len().to_le_bytes());
                digest.update(part);
            }
        }
        let mut text = String::new();
        for byte in digest.finalize().iter().take(VERSION_LENGTH / 2) {
            // writing to a String cannot fail
            let _ = write!(text, "{byte:02x}");
        }
        text
    })
}

/// The page. It names every module, so that a browser fetches all at once and not one behind the other.
#[must_use]
pub fn index() -> &'static str {
    static INDEX: OnceLock<String> = OnceLock::new();
    INDEX.get_or_init(|| {
        let modules = ASSETS.iter().filter(|asset| asset.name.ends_with(".js"));
        let links: String = modules.map(|asset| format!("<link rel=\"modulepreload\" href=\"{{assets}}/{}\">\n", asset.name)).collect();
        TEMPLATE.replace("{modules}", &links).replace("{assets}", &format!("/assets/{}", version()))
    })
}

/// The file of a path below `/assets/`; none of another version.
#[must_use]
pub fn asset(path: &str) -> Option<&'static Asset> {
    let name = path.strip_prefix(version())?.strip_prefix('/')?;
    ASSETS.iter().find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests;
