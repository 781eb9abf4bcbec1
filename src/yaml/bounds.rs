//! Reads the parser's events of a text, and compares their number and size with limits.

use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libyaml_safer::{Event, EventData, Mark, Parser, ScalarStyle};

/// Maximum size of a text. Each alias counts as the node that it repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum depth of nested lists and mappings.
    pub(crate) nesting: usize,
    /// Maximum number of events: one for each scalar, two for each list and mapping.
    pub(crate) events: u64,
    /// Maximum length of all scalars together, in bytes.
    pub(crate) bytes: u64,
}

impl Limits {
    /// Limits for config files. A hundred thousand events are far more than a file of 1 MiB needs.
    pub(crate) const CONFIGURATION: Self = Self { nesting: 32, events: 100_000, bytes: 1 << 20 };
}

/// Maximum number of directives (`%TAG`) in a text. The parser compares each with all the others.
const DIRECTIVES_MAX: usize = 64;

/// Number of bytes that the parser reads at once. It stores each character in four bytes.
const CHUNK_BYTES: usize = 4096;

/// Error of a rejected text. It never quotes the text, which may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum YamlError {
    /// The text is not YAML.
    #[error("not YAML: check line {line}, column {column}")]
    Syntax {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// The parser's message, which quotes nothing.
        problem: &'static str,
    },
    /// The text exceeds a limit.
    #[error("{reason} (line {line})")]
    Limit {
        /// Line of the event that exceeds the limit, from 1.
        line: u64,
        /// The exceeded limit, human-readable.
        reason: String,
    },
    /// Agents reject this YAML.
    #[error("{reason} (line {line})")]
    Refused {
        /// Line, from 1.
        line: u64,
        /// Reason, human-readable.
        reason: &'static str,
    },
}

impl YamlError {
    /// Returns the line, from 1.
    pub(crate) fn line(&self) -> u64 {
        match self {
            Self::Syntax { line, .. } | Self::Limit { line, .. } | Self::Refused { line, .. } => *line,
        }
    }

    /// Returns the reason alone, for messages that name the line before it.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Syntax { problem, .. } => (*problem).to_owned(),
            Self::Limit { reason, .. } => reason.clone(),
            Self::Refused { reason, .. } => (*reason).to_owned(),
        }
    }

    fn syntax(mark: Mark, problem: &'static str) -> Self {
        Self::Syntax { line: mark.line + 1, column: mark.column + 1, problem }
    }

    fn limit(mark: Mark, reason: String) -> Self {
        Self::Limit { line: mark.line + 1, reason }
    }
}

/// Checks all documents of a text.
///
/// # Errors
/// Returns a [`YamlError`] for the first event over a limit, or if the text is not YAML.
pub(crate) fn check(text: &str, limits: &Limits) -> Result<(), YamlError> {
    let mut events = Events::new(text, *limits)?;
    while !matches!(events.next()?.data, EventData::StreamEnd) {}
    Ok(())
}

/// Cost of a node, which each alias to it adds again.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    events: u64,
    bytes: u64,
    /// Depth of nested lists and mappings in the node.
    nesting: usize,
}

/// A list or mapping that has not ended yet.
struct OpenNode {
    /// Index in [`Events::anchored`].
    anchored: Option<usize>,
    /// Totals of [`Events`] at the start of the node.
    events: u64,
    bytes: u64,
    /// Depth of the content so far.
    nesting: usize,
}

/// Events of a text, each checked before it is returned.
pub(super) struct Events<'a> {
    parser: Parser<BufReader<Box<dyn Read + 'a>>>,
    /// Position at the end of the text, if a line break was added there.
    padded_at: Option<u64>,
    limits: Limits,
    /// End of the last event.
    last: Mark,
    open: Vec<OpenNode>,
    events: u64,
    bytes: u64,
    /// Indices into `anchored`, by name.
    anchors: HashMap<String, usize>,
    /// Costs of the nodes with an anchor in this document; `None` while a node has not ended.
    anchored: Vec<Option<Cost>>,
}

impl<'a> Events<'a> {
    pub(super) fn new(text: &'a str, limits: Limits) -> Result<Self, YamlError> {
        if let Some((line, _)) = text.lines().enumerate().filter(|(_, line)| line.starts_with('%')).nth(DIRECTIVES_MAX) {
            return Err(YamlError::Limit { line: line as u64 + 1, reason: format!("more than {DIRECTIVES_MAX} directives") });
        }
        // libyaml-safer 0.3 panics if a text ends inside a scalar
        let is_padded = !text.ends_with(['\n', '\r']);
        let pad: &[u8] = if is_padded { b"\n" } else { b"" };
        let mut parser = Parser::new();
        let input: Box<dyn Read + 'a> = Box::new(text.as_bytes().chain(pad));
        parser.set_input(BufReader::with_capacity(CHUNK_BYTES, input));
        // the parser does not count the byte order mark
        let padded_at = is_padded.then_some(text.trim_start_matches('\u{feff}').len() as u64);
        let (open, anchors, anchored) = (Vec::new(), HashMap::new(), Vec::new());
        Ok(Self { parser, padded_at, limits, last: Mark::default(), open, events: 0, bytes: 0, anchors, anchored })
    }

    /// Returns the next event. All events so far are within the limits.
    pub(super) fn next(&mut self) -> Result<Event, YamlError> {
        let parser = &mut self.parser;
        // libyaml-safer 0.3 panics at `[!,`; the parser is not used again after an error
        let mut event = match catch_unwind(AssertUnwindSafe(|| parser.parse())) {
            Ok(Ok(event)) => event,
            Ok(Err(error)) => return Err(YamlError::syntax(error.problem_mark().unwrap_or(self.last), error.problem())),
            Err(_) => return Err(YamlError::syntax(self.last, "a tag that ends with a comma")),
        };
        self.count_event(&mut event)?;
        self.last = event.end_mark;
        Ok(event)
    }

    fn count_event(&mut self, event: &mut Event) -> Result<(), YamlError> {
        let (start, end) = (event.start_mark, event.end_mark);
        match &mut event.data {
            EventData::StreamStart { .. } | EventData::StreamEnd | EventData::DocumentEnd { .. } => Ok(()),
            EventData::DocumentStart { .. } => {
                self.anchors.clear();
                self.anchored.clear();
                Ok(())
            }
            EventData::Scalar { anchor, tag, value, style, .. } => {
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                if is_block && self.padded_at.is_some_and(|padded| end.index > padded) && value.ends_with('\n') {
                    value.pop();
                }
                let cost = Cost { events: 1, bytes: (value.len() + tag.as_ref().map_or(0, String::len)) as u64, nesting: 0 };
                let anchored = self.register_anchor(anchor.as_deref());
                self.set_cost(anchored, cost);
                self.add_cost(start, cost)
            }
            EventData::SequenceStart { anchor, .. } | EventData::MappingStart { anchor, .. } => {
                let anchored = self.register_anchor(anchor.as_deref());
                self.open.push(OpenNode { anchored, events: self.events, bytes: self.bytes, nesting: 0 });
                self.add_cost(start, Cost { events: 1, bytes: 0, nesting: 0 })
            }
            EventData::SequenceEnd | EventData::MappingEnd => {
                self.add_cost(start, Cost { events: 1, bytes: 0, nesting: 0 })?;
                let Some(OpenNode { anchored, events, bytes, nesting }) = self.open.pop() else { return Ok(()) };
                let nesting = nesting + 1;
                self.set_cost(anchored, Cost { events: self.events - events, bytes: self.bytes - bytes, nesting });
                if let Some(parent) = self.open.last_mut() {
                    parent.nesting = parent.nesting.max(nesting);
                }
                Ok(())
            }
            EventData::Alias { anchor } => {
                let cost = self.anchors.get(anchor).and_then(|index| self.anchored[*index]);
                // an alias of an unknown node, or of a node that contains the alias
                self.add_cost(start, cost.ok_or_else(|| YamlError::syntax(start, "an alias without an anchor, or inside its own anchor"))?)
            }
        }
    }

    /// Registers an anchor at the start of its node. A later anchor of the same name replaces it,
    /// even inside the node.
    fn register_anchor(&mut self, name: Option<&str>) -> Option<usize> {
        let index = self.anchored.len();
        self.anchors.insert(name?.to_owned(), index);
        self.anchored.push(None);
        Some(index)
    }

    fn set_cost(&mut self, anchored: Option<usize>, cost: Cost) {
        if let Some(index) = anchored {
            self.anchored[index] = Some(cost);
        }
    }

    /// Adds the cost of an event.
    fn add_cost(&mut self, mark: Mark, cost: Cost) -> Result<(), YamlError> {
        let Limits { nesting, events, bytes } = self.limits;
        self.events = self.events.saturating_add(cost.events);
        self.bytes = self.bytes.saturating_add(cost.bytes);
        if let Some(parent) = self.open.last_mut() {
            parent.nesting = parent.nesting.max(cost.nesting);
        }
        if self.open.len() + cost.nesting > nesting {
            return Err(YamlError::limit(mark, format!("lists and mappings nested deeper than {nesting}")));
        }
        if self.events > events {
            return Err(YamlError::limit(mark, format!("more than {events} values, including those that aliases repeat")));
        }
        if self.bytes > bytes {
            return Err(YamlError::limit(mark, format!("more than {bytes} bytes of strings, including those that aliases repeat")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const LIMITS: Limits = Limits::CONFIGURATION;

    fn refused(text: &str) -> String {
        check(text, &LIMITS).unwrap_err().to_string()
    }

    #[test]
    fn the_nesting_limit_includes_aliased_nodes() {
        let nested = |depth: usize| format!("{}x{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(check(&nested(32), &LIMITS), Ok(()));
        assert_eq!(refused(&nested(33)), "lists and mappings nested deeper than 32 (line 1)");
        assert_eq!(check(&format!("a: &a {}\nb: [*a]\n", nested(30)), &LIMITS), Ok(()));
        assert_eq!(refused(&format!("a: &a {}\nb: [[*a]]\n", nested(30))), "lists and mappings nested deeper than 32 (line 2)");
    }

    #[test]
    fn the_event_and_byte_limits_include_aliased_nodes() {
        let list = |length: usize| format!("[{}]", "x,".repeat(length));
        assert_eq!(check(&list(99_998), &LIMITS), Ok(()));
        assert_eq!(refused(&list(99_999)), "more than 100000 values, including those that aliases repeat (line 1)");
        let laughs: String =
            ('b'..='j').zip('a'..).map(|(name, last)| format!("{name}: &{name} [{}]\n", vec![format!("*{last}"); 9].join(","))).collect();
        assert_eq!(
            refused(&format!("a: &a [{}]\n{laughs}", ["x"; 9].join(","))),
            "more than 100000 values, including those that aliases repeat (line 6)"
        );
        let long = format!("a: &a {}\nb: [*a, *a", "x".repeat(400_000));
        assert_eq!(refused(&format!("{long}]")), "more than 1048576 bytes of strings, including those that aliases repeat (line 2)");
        assert_eq!(check(&long.replace(", *a", "]"), &LIMITS), Ok(()));
    }

    #[test]
    fn unknown_and_recursive_aliases_are_refused() {
        for text in ["*a", "&a [*a]", "a: &a {b: &a [*a]}", "a: &a x\n---\n*a\n"] {
            assert!(refused(text).starts_with("not YAML: check line "), "{text}");
        }
        assert_eq!(check("a: &a [&a x, *a]\nb: *a", &LIMITS), Ok(()));
    }

    #[test]
    fn a_truncated_text_does_not_panic() {
        let whole = "%TAG !e! x\n---\na: &a !e!f \"\\x41\\\n \\\\\"\nb: |+2\n   x\n? [!, 'c', {d: *a}]\n: !<x%C3%A9> >-\n y\n...\n";
        for end in 0..=whole.len() {
            let _ = check(&whole[..end], &LIMITS);
        }
        assert_eq!(check("a: |\n  x", &LIMITS), Ok(()));
        assert_eq!(refused("[!,"), "not YAML: check line 1, column 1");
        assert_eq!(refused("a: \"\\"), "not YAML: check line 2, column 1");
    }

    #[test]
    fn long_texts_are_checked_in_linear_time() {
        let fill = |text: &str| text.repeat(300_000 / text.len());
        let pieces = [
            "[",
            "{",
            "{a: ",
            "[{",
            "- ",
            "? ",
            "? [",
            "&a ",
            "!t ",
            "x # ",
            "x#",
            "x\n  ",
            "x:y ",
            "[\n",
            "[],",
            "a: 1, ",
            "---\n",
            "%TAG !a! x\n",
            "\n",
            " ",
            "\t",
        ];
        let texts = pieces.iter().flat_map(|piece| ["", "endpoints: ", "[", "\""].map(|before| format!("{before}{}", fill(piece))));
        let directives = (0..60_000).map(|number| format!("%TAG !{number}! x\n")).collect();
        for text in texts.chain([directives]) {
            let started = Instant::now();
            let _ = check(&text, &LIMITS);
            // about 0.2 s in a debug build; a check that is not linear would take a minute
            assert!(started.elapsed() < Duration::from_secs(5), "{}", &text[..20]);
        }
    }
}
