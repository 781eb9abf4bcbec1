//! A reader of Rust source that is good enough to count lines and find names: it removes comments,
//! string literals and test modules.

use std::fs;
use std::path::Path;

/// A source file.
pub(crate) struct SourceFile {
    /// Path from the project's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// `text` without comments, the contents of string literals, and the items with `#[cfg(test)]`.
    /// Line numbers are those of `text` up to the first such item.
    pub(crate) code: String,
}

/// A function and its length.
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line number, counted from 1.
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

impl SourceFile {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), code: without_tests(&strip(text)) }
    }

    /// Returns the first part of the path below `src/`.
    pub(crate) fn room(&self) -> &str {
        let below = self.path.trim_start_matches("src/");
        below.split('/').next().unwrap_or(below).trim_end_matches(".rs")
    }

    /// Returns whether the whole file is test code.
    pub(crate) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs")
    }

    /// Returns the files to which the `mod x;` lines may refer.
    pub(crate) fn children(&self) -> Vec<String> {
        let (directory, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let owner = match file {
            "lib.rs" | "main.rs" | "mod.rs" => directory.to_owned(),
            _ => self.path.trim_end_matches(".rs").to_owned(),
        };
        let declared = strip(&self.text);
        let names = declared.lines().filter_map(|line| {
            let (before, after) = line.split_once("mod ")?;
            let is_declaration = before.trim().is_empty() || before.trim().starts_with("pub");
            after.trim().strip_suffix(';').filter(|_| is_declaration).map(str::to_owned)
        });
        names.flat_map(|name| [format!("{owner}/{name}.rs"), format!("{owner}/{name}/mod.rs")]).collect()
    }
}

/// Returns every Rust file below a folder of the project, sorted by path.
pub(crate) fn read_sources(folder: &str) -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut files, mut unvisited) = (Vec::new(), vec![root.join(folder)]);
    while let Some(directory) = unvisited.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                unvisited.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(root).unwrap().to_str().unwrap();
                files.push(SourceFile::new(relative, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort_by(|left, right| left.path.cmp(&right.path));
    assert!(!files.is_empty(), "no Rust files in {folder}");
    files
}

/// Removes comments and the contents of string and character literals. Line breaks stay.
pub(crate) fn strip(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word_before = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => plain_text_length(rest),
            'r' if !word_before => raw_text_length(rest),
            '\'' => character_length(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
            rest = &rest[skipped..];
        }
    }
    code
}

/// Returns the length of a `"…"` literal.
fn plain_text_length(rest: &str) -> usize {
    let mut escaped = false;
    let end = rest[1..].find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |end| end + 2)
}

/// Returns the length of a raw string literal with any number of `#`; 0 if there is none.
fn raw_text_length(rest: &str) -> usize {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    if !rest[1 + hashes..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let body = hashes + 2;
    rest[body..].find(&close).map_or(rest.len(), |end| body + end + close.len())
}

/// Returns the length of a `'x'` or `'\n'` literal; 0 for a lifetime.
fn character_length(rest: &str) -> usize {
    let mut characters = rest[1..].char_indices();
    match characters.next() {
        Some((_, '\\')) => rest[3..].find('\'').map_or(0, |end| end + 4),
        Some((_, _)) => match characters.next() {
            Some((at, '\'')) => at + 2,
            _ => 0,
        },
        None => 0,
    }
}

/// Removes every item with `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mark = "#[cfg(test)]";
    let (mut remaining_code, mut rest) = (String::with_capacity(code.len()), code);
    while let Some(start) = rest.find(mark) {
        remaining_code.push_str(&rest[..start]);
        let after = &rest[start + mark.len()..];
        let end = match (after.find('{'), after.find(';')) {
            (Some(open), semicolon) if semicolon.is_none_or(|semicolon| open < semicolon) => open + block_length(&after[open..]),
            (_, Some(semicolon)) => semicolon + 1,
            (_, None) => after.len(),
        };
        rest = after[end..].trim_start_matches('\n');
    }
    remaining_code + rest
}

/// Returns the length of the block whose opening brace starts the text.
fn block_length(code: &str) -> usize {
    let mut depth = 0_u32;
    for (offset, character) in code.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 1 => return offset + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Returns every function that has a body.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    for (offset, _) in code.match_indices("fn ") {
        let (before, after) = (&code[..offset], &code[offset..]);
        let name: String = after[3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() || before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let Some(open) = body_of(after) else { continue };
        let length = open + block_length(&after[open..]);
        let lines = after[..length].lines().count();
        functions.push(Function { name, line: before.matches('\n').count() + 1, lines });
    }
    functions
}

/// Returns the offset of the body of a declared function; `None` if it has no body. Array types in
/// the signature contain semicolons too.
fn body_of(declaration: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (offset, character) in declaration.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' if depth == 0 => return Some(offset),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}
