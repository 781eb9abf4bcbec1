//! The web page at `/`: its files, which are compiled into the binary, and their versioned
//! addresses.
//!
//! The files in `assets/` are plain ES modules that a browser loads unchanged. They are all below
//! one path with a hash of their contents, so that browsers can cache them forever. Modules import
//! each other by relative paths and never meet a module of another version. `assets/vendor` has
//! third-party files as they were published (a test checks their hashes). The page uses only the
//! public API.

use std::fmt::Write as _;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// Content security policy of a [`document`] that has no script.
pub const DOCUMENT_POLICY: &str =
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Content security policy of the page: nothing is loaded from or sent to other hosts, documents
/// have no inline script or style, and no text becomes markup (`require-trusted-types-for`),
/// whatever a mesh announces.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Returns the policy of the page if web pages of these origins may show it in a frame.
#[must_use]
pub fn policy_for_frames(origins: &[String]) -> String {
    if origins.is_empty() {
        POLICY.to_owned()
    } else {
        POLICY.replace("frame-ancestors 'none'", &format!("frame-ancestors {}", origins.join(" ")))
    }
}

/// Number of the hash's characters in the address: 64 bits distinguish any two versions.
const VERSION_LENGTH: usize = 16;

/// One file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Path below `assets/`.
    pub name: &'static str,
    /// Content of the file.
    pub text: &'static str,
}

macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        [$(Asset { name: $name, text: include_str!(concat!("assets/", $name)) }),*]
    };
}

/// All files except the page itself.
pub static ASSETS: [Asset; 34] = assets![
    "api.js",
    "copy.js",
    "frame.js",
    "html.js",
    "icon-bad.svg",
    "icon-busy.svg",
    "icon-gone.svg",
    "icon-warn.svg",
    "icon.svg",
    "main.js",
    "mirror.js",
    "parts.css",
    "parts/changes.js",
    "parts/empty.js",
    "parts/explain.js",
    "parts/find.js",
    "parts/impact.js",
    "parts/mesh.js",
    "parts/mesh_list.js",
    "parts/problems.js",
    "parts/services.js",
    "parts/time_picker.js",
    "parts/timeline.js",
    "route.js",
    "search.js",
    "search_query.js",
    "state.js",
    "style.css",
    "vendor/htm.LICENSE",
    "vendor/preact.LICENSE",
    "vendor/preact.js",
    "view_token.js",
    "windows.js",
    "words.js",
];

/// Page before the addresses of its files are inserted.
const TEMPLATE: &str = include_str!("assets/index.html");

impl Asset {
    /// Returns the media type.
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

/// Returns the path component of all files: a hash of their names and contents.
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

/// Returns the page. It names every module, so that a browser fetches all of them in parallel and
/// not one after the other.
#[must_use]
pub fn index() -> &'static str {
    static INDEX: OnceLock<String> = OnceLock::new();
    INDEX.get_or_init(|| {
        let modules = ASSETS.iter().filter(|asset| asset.name.ends_with(".js"));
        let links: String = modules.map(|asset| format!("<link rel=\"modulepreload\" href=\"{{assets}}/{}\">\n", asset.name)).collect();
        TEMPLATE.replace("{modules}", &links).replace("{assets}", &format!("/assets/{}", version()))
    })
}

/// Returns an HTML document in the style of the page. `head` and `body` are HTML, and `title` is
/// text that needs no escapes.
#[must_use]
pub fn document(title: &str, head: &str, body: &str) -> String {
    let assets = format!("/assets/{}", version());
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} · meshkeep</title>\n\
         <link rel=\"icon\" type=\"image/svg+xml\" href=\"{assets}/icon.svg\">\n<link rel=\"stylesheet\" href=\"{assets}/style.css\">\n{head}<body class=\"document\">\n\
         <header class=\"bar\"><a class=\"brand\" href=\"/\">meshkeep</a><nav aria-label=\"pages\"><a href=\"/\">Mesh</a> <a href=\"/docs\">API</a> <a href=\"/problems\">Problem types</a></nav></header>\n\
         <main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Returns the file for a path below `/assets/`; `None` for another version.
#[must_use]
pub fn asset(path: &str) -> Option<&'static Asset> {
    let name = path.strip_prefix(version())?.strip_prefix('/')?;
    ASSETS.iter().find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests;
