//! Language rules as tests: names, comments and documents in plain English with the field's terms.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::SOURCES;
use super::source::{SourceFile, read_sources};

/// Words that say too little as the whole name of a type or module: metaphors, bare participles and
/// bare abstractions.
const VAGUE_NAMES: [&str; 47] = [
    "Asked", "Away", "Begun", "Board", "Book", "Door", "Found", "Gist", "Given", "Glance", "Gone", "Held", "Janitor", "Kept", "Ledger",
    "Look", "Looked", "Looking", "Lookout", "Made", "Making", "Manner", "Meaning", "Merit", "Moment", "Nowhere", "Pieces", "Place",
    "Places", "Posts", "Seat", "Seats", "Shelf", "Side", "Sides", "Slip", "Taken", "Taking", "Teller", "Told", "Trouble", "Unread",
    "Vigil", "Visit", "Wave", "Way", "World",
];

/// Type names that several modules of a crate may have, because readers expect them there.
const SHARED_NAMES: [&str; 8] = ["Args", "Batch", "Case", "Data", "Error", "Inner", "Options", "State"];

/// Folders whose types describe JSON and keep the field's names.
const WIRE_SHAPES: [&str; 2] = ["src/dto/", "src/wire/"];

/// First words of doc comments that usually begin an inverted sentence.
const OPENINGS: [&str; 9] = ["How", "What", "Whether", "Where", "Who", "Which", "Those", "Of", "So"];

/// Vague phrases, which a reader must translate first. Each is split in two, so that this file does
/// not contain it.
const PHRASES: [(&str, &str); 14] = [
    ("to", "ld"),
    ("tel", "ls"),
    ("who", "ever"),
    ("who a", "sks"),
    ("so m", "any"),
    ("an", "ew"),
    ("as a r", "ule"),
    ("in any c", "ase"),
    ("lets g", "o"),
    ("gives w", "ay"),
    ("at r", "est"),
    ("what is h", "eld"),
    ("what st", "ands"),
    ("in the mak", "ing"),
];

/// Maximum length of a line of comments.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Texts that name the page or the standard to which a section sign refers.
const SOURCES_OF_SECTIONS: [&str; 4] = [".md", "RFC ", "HTML ", "YAML "];

/// References to the history of the project, which mean nothing to its users.
const PROJECT_HISTORY: [(&str, &str); 4] = [("seed docu", "ment"), ("the user as", "ked"), ("the issue as", "ks"), ("revie", "wer")];

fn all_code() -> Vec<SourceFile> {
    ["src", "crates", "tests", "benches"].into_iter().flat_map(read_sources).collect()
}

/// Returns the project's Markdown pages.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut pages, mut unvisited) = (Vec::new(), vec![root.join("docs"), root.join("crates"), root.join("deploy"), root.join("examples")]);
    let top = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = top.filter(|path| path.is_file()).collect();
    while let Some(folder) = unvisited.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { unvisited.push(path) } else { files.push(path) }
        }
    }
    for path in files {
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push((path.strip_prefix(root).unwrap().display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    pages
}

/// Returns the name that a line declares with one of the keywords.
fn declared<'a>(line: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let mut words = line.trim_start().split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    let visibility = ["pub", "crate", "super", "in", "cli"];
    let keyword = words.find(|word| !visibility.contains(word))?;
    keywords.contains(&keyword).then(|| words.next()).flatten()
}

/// Returns the doc comments of a text, each with the number of its first line. Consecutive lines
/// are one comment.
fn doc_comments(text: &str) -> Vec<(usize, &str)> {
    let mut comments = Vec::new();
    let mut was_comment = false;
    for (number, line) in text.lines().enumerate() {
        let body = line.trim_start().strip_prefix("///").or_else(|| line.trim_start().strip_prefix("//!"));
        if let (Some(body), false) = (body, was_comment) {
            comments.push((number + 1, body.trim()));
        }
        was_comment = body.is_some();
    }
    comments
}

/// Counts the phrases in a text, as whole words in lower case.
fn count_phrases(text: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let count = |phrase: String| {
        let is_whole_word =
            |&(start, matched): &(usize, &str)| !text[..start].ends_with(is_word) && !text[start + matched.len()..].starts_with(is_word);
        text.match_indices(&phrase).filter(is_whole_word).count()
    };
    PHRASES.iter().map(|(first, second)| count(format!("{first}{second}"))).sum()
}

#[test]
fn type_and_module_names_are_specific() {
    let mut wrong = Vec::new();
    for file in all_code() {
        for (number, line) in file.code.lines().enumerate() {
            let name = declared(line, &["struct", "enum", "trait", "mod"]).unwrap_or_default();
            let is_vague = VAGUE_NAMES.iter().any(|vague| vague.eq_ignore_ascii_case(name));
            if is_vague {
                wrong.push(format!("{}:{}: {name}", file.path, number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "these names need a noun of the field:\n{}", wrong.join("\n"));
}

#[test]
fn type_names_are_unique_within_a_crate() {
    let mut wrong = Vec::new();
    for folder in SOURCES {
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for file in
            read_sources(folder).iter().filter(|file| !file.is_test() && !WIRE_SHAPES.iter().any(|shape| file.path.starts_with(shape)))
        {
            let names = file.code.lines().filter_map(|line| declared(line, &["struct", "enum", "trait"]));
            for name in names.filter(|name| name.starts_with(char::is_uppercase) && !SHARED_NAMES.contains(name)) {
                places.entry(name.to_owned()).or_default().push(file.path.clone());
            }
        }
        wrong.extend(places.into_iter().filter(|(_, files)| files.len() > 1).map(|(name, files)| format!("{name}: {}", files.join(", "))));
    }
    assert!(wrong.is_empty(), "these names exist more than once:\n{}", wrong.join("\n"));
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let (mut inverted, mut count) = (Vec::new(), 0);
    for file in all_code() {
        for (number, comment) in doc_comments(&file.text) {
            count += 1;
            let first = comment.split_whitespace().next().unwrap_or_default();
            if OPENINGS.contains(&first) {
                inverted.push(format!("{}:{number}: {comment}", file.path));
            }
        }
    }
    assert!(inverted.len() * 20 <= count, "{} of {count} doc comments:\n{}", inverted.len(), inverted.join("\n"));
}

#[test]
fn code_and_documents_avoid_the_vague_phrases() {
    let mut places = Vec::new();
    let (mut lines, mut words) = (0, 0);
    for file in all_code() {
        lines += file.text.lines().count();
        let lines_with_phrases = file.text.lines().enumerate().filter(|(_, line)| count_phrases(&line.to_lowercase()) > 0);
        places.extend(lines_with_phrases.map(|(number, line)| format!("{}:{}: {}", file.path, number + 1, line.trim())));
    }
    assert!(places.len() * 1_000 <= lines, "{} in {lines} lines of code:\n{}", places.len(), places.join("\n"));
    places.clear();
    for (path, text) in pages() {
        words += text.split_whitespace().count();
        let lines_with_phrases = text.lines().enumerate().filter(|(_, line)| count_phrases(&line.to_lowercase()) > 0);
        places.extend(lines_with_phrases.map(|(number, line)| format!("{path}:{}: {}", number + 1, line.trim())));
    }
    assert!(places.len() * 1_000 <= words, "{} in {words} words of documents:\n{}", places.len(), places.join("\n"));
}

#[test]
fn comments_are_narrow_and_each_file_has_a_head_comment() {
    let mut wrong = Vec::new();
    for file in all_code() {
        let (mut previous, mut is_example) = ("", false);
        for (number, line) in file.text.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            is_example ^= line.trim_start_matches(['/', '!', ' ']).starts_with("```");
            if is_comment && !is_example && line.chars().count() > COMMENT_COLUMNS_MAX {
                wrong.push(format!("{}:{}: above {COMMENT_COLUMNS_MAX} columns", file.path, number + 1));
            }
            // the page or standard may be named in the line before
            if is_comment
                && line.contains('§')
                && ![previous, line].iter().any(|line| SOURCES_OF_SECTIONS.iter().any(|source| line.contains(source)))
            {
                wrong.push(format!("{}:{}: a section sign without its page", file.path, number + 1));
            }
            previous = line;
        }
        // a file that other files include cannot begin with `//!`
        if !file.text.starts_with("//") {
            wrong.push(format!("{}: begins without //!", file.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_refers_to_the_history_of_the_project() {
    let code = all_code().into_iter().map(|file| (file.path, file.text));
    let mut wrong = Vec::new();
    for (path, text) in code.chain(pages()) {
        for (number, line) in text.lines().enumerate() {
            let line = line.to_lowercase();
            if PROJECT_HISTORY.iter().any(|(first, second)| line.contains(&format!("{first}{second}"))) {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn vague_phrases_and_declared_names_are_detected() {
    assert_eq!(count_phrases(&format!("it {}{} us {}{}; untold", "to", "ld", "an", "ew")), 2);
    assert_eq!(declared("    pub(crate) struct Cursor<T> {", &["struct"]), Some("Cursor"));
    assert_eq!(declared("mod page;", &["struct", "mod"]), Some("page"));
    assert_eq!(declared("let mut x = 1;", &["struct", "mod"]), None);
    assert_eq!(doc_comments("/// One.\n/// Two.\nfn x() {}\n/// Three."), [(1, "One."), (4, "Three.")]);
}
