//! References from code to documents: each document must exist, and each section must have a
//! heading.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::source::read_sources;

/// Folders to which the names of documents in code are relative.
const ROOTS: [&str; 2] = ["", "docs/"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the headings of a document without their marks; `None` if there is no such document.
fn headings(name: &str) -> Option<Vec<String>> {
    let text = ROOTS.iter().find_map(|folder| fs::read_to_string(root().join(format!("{folder}{name}"))).ok())?;
    Some(text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim().to_owned()).collect())
}

/// Returns the documents that a line names, each with the text that follows.
fn document_names(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.match_indices(".md").filter_map(|(dot, end)| {
        let start = line[..dot].rfind(|c: char| !(c.is_ascii_alphanumeric() || "-_/.".contains(c))).map_or(0, |before| before + 1);
        let rest = &line[dot + end.len()..];
        let is_name = start < dot && !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
        is_name.then(|| (&line[start..dot + end.len()], rest))
    })
}

/// Returns the number of the section that directly follows a document's name, such as 2.8.
fn section(rest: &str) -> Option<&str> {
    let rest = rest.strip_prefix(" §").or_else(|| rest.strip_prefix(", §"))?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    Some(rest[..end].trim_end_matches('.')).filter(|number| !number.is_empty())
}

/// Returns the errors in a line's references.
fn reference_errors(line: &str, known: &mut BTreeMap<String, Option<Vec<String>>>) -> Vec<String> {
    let mut errors = Vec::new();
    for (name, rest) in document_names(line) {
        let known = known.entry(name.to_owned()).or_insert_with(|| headings(name));
        match (known, section(rest)) {
            (None, _) => errors.push(format!("there is no {name}")),
            (Some(headings), Some(number)) => {
                let begins = |heading: &&String| heading.strip_prefix(number).is_some_and(|rest| rest.starts_with([' ', '.']));
                if !headings.iter().any(|heading| begins(&heading)) {
                    errors.push(format!("{name} has no section {number}"));
                }
            }
            (Some(_), None) => {}
        }
    }
    errors
}

#[test]
fn documents_and_sections_named_in_code_exist() {
    let mut known = BTreeMap::new();
    let mut errors = Vec::new();
    for file in ["src", "crates", "tests", "benches"].into_iter().flat_map(read_sources) {
        for (number, line) in file.text.lines().enumerate() {
            errors.extend(reference_errors(line, &mut known).into_iter().map(|what| format!("{}:{}: {what}", file.path, number + 1)));
        }
    }
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn a_missing_document_or_section_is_detected() {
    let missing = |line: &str| reference_errors(line, &mut BTreeMap::new());
    let (nowhere, real) = (concat!("nowhere", ".md"), concat!("docs/develop/protocol", ".md"));
    assert_eq!(missing(&format!("/// As {nowhere} has it.")), [format!("there is no {nowhere}")]);
    assert_eq!(missing(&format!("/// ({real} §2.8) and ({real}, §99)")), [format!("{real} has no section 99")]);
}

/// Folders of `docs/`. Each has a README.md that lists its pages.
const FOLDERS: [&str; 4] = ["docs/use", "docs/use/api", "docs/operate", "docs/develop"];

/// Returns the Markdown files directly in `folder`, without its README.md.
fn pages_in(folder: &str) -> impl Iterator<Item = PathBuf> {
    let paths = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "md") && !path.ends_with(concat!("README", ".md")))
}

/// Returns the anchor that GitHub generates for a heading.
fn anchor(heading: &str) -> String {
    let words = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    words.replace(' ', "-")
}

/// Returns the links of a page to files of the repository and to their headings.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(' ') && !target.starts_with("mailto:"))
}

#[test]
fn every_link_between_pages_has_a_target() {
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "examples/README.md",
        "docs/README.md",
        "docs/use/README.md",
        "docs/use/api/README.md",
        "docs/use/page/README.md",
        "docs/operate/README.md",
        "docs/develop/README.md",
    ];
    let mut broken = Vec::new();
    for page in FOLDERS.into_iter().flat_map(pages_in).chain(others.map(|name| root().join(name))) {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let content = if target.is_dir() { Ok(String::new()) } else { fs::read_to_string(&target) };
            let has = |heading: &str, text: &str| {
                text.lines().any(|line| line.starts_with('#') && anchor(line.trim_start_matches('#').trim()) == heading)
            };
            let is_there = match (&content, heading) {
                (Ok(text), Some(heading)) => has(heading, text),
                // the target is not text, for instance a picture
                (_, _) => target.exists(),
            };
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn each_folder_index_lists_its_pages() {
    let index = |folder: &str| fs::read_to_string(root().join(folder).join(concat!("README", ".md"))).unwrap();
    let lists = |index: &str, page: &Path| index.contains(&format!("]({})", page.file_name().unwrap().to_str().unwrap()));
    let mut missing = Vec::new();
    for folder in FOLDERS {
        missing.extend(pages_in(folder).filter(|page| !lists(&index(folder), page)));
    }
    assert_eq!(missing, Vec::<PathBuf>::new());
    assert_eq!(pages_in("docs").collect::<Vec<_>>(), Vec::<PathBuf>::new(), "pages belong in one of the folders");
    assert!(FOLDERS.iter().all(|folder| index("docs").contains(&format!("]({}/", folder.trim_start_matches("docs/")))));
}
