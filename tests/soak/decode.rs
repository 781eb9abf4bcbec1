//! Incremental decoder of a stream's bytes into events.

use std::borrow::Cow;
use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Data of one event, without the members that checkers do not need.
#[derive(Debug, Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type")]
    pub(super) name: &'a str,
    #[serde(default)]
    pub(super) kind: Option<&'a str>,
    #[serde(default, borrow)]
    pub(super) key: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub(super) object: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) reason: Option<&'a str>,
    #[serde(default)]
    pub(super) mode: Option<&'a str>,
    #[serde(default)]
    pub(super) count: Option<u64>,
    #[serde(default, borrow)]
    pub(super) backends: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) problem: Option<&'a RawValue>,
    #[serde(default, rename = "position")]
    own_position: Option<&'a str>,
    #[serde(default)]
    meta: Option<Meta<'a>>,
}

#[derive(Debug, Deserialize)]
struct Meta<'a> {
    #[serde(default)]
    position: Option<&'a str>,
}

impl Event<'_> {
    /// Returns the position after the event, which is the `id` of a server-sent event.
    pub(super) fn position(&self) -> Option<&str> {
        self.own_position.or_else(|| self.meta.as_ref()?.position)
    }
}

/// Splits a chunked body into lines. An incomplete line is dropped with its connection.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    /// Adds a chunk and calls `on_line` for each line that is complete now.
    pub(super) fn feed(&mut self, chunk: &[u8], mut on_line: impl FnMut(&[u8])) {
        self.bytes.extend_from_slice(chunk);
        let mut remaining = self.bytes.as_slice();
        let mut used = 0;
        loop {
            // search with the standard library, which is optimized even in a test build; a loop in
            // this file would not be
            let mut after = remaining;
            let length = after.skip_until(b'\n').expect("must be readable: it is memory");
            if length == 0 || remaining[length - 1] != b'\n' {
                break;
            }
            on_line(&remaining[..length - 1]);
            used += length;
            remaining = after;
        }
        self.bytes.drain(..used);
    }
}

/// Fields of the server-sent event that is being received.
#[derive(Debug, Default)]
pub(super) struct SseBlock {
    name: Vec<u8>,
    id: Option<Vec<u8>>,
    data: Vec<u8>,
}

impl SseBlock {
    /// Adds one line. At the end of an event, calls `dispatch` with its name, id and data.
    pub(super) fn line(&mut self, line: &[u8], mut dispatch: impl FnMut(&[u8], Option<&[u8]>, &[u8])) {
        if line.is_empty() {
            if !self.data.is_empty() {
                dispatch(&self.name, self.id.as_deref(), &self.data);
            }
            self.name.clear();
            self.id = None;
            self.data.clear();
        } else if let Some(value) = line.strip_prefix(b"data: ") {
            self.data.extend_from_slice(value);
        } else if let Some(value) = line.strip_prefix(b"event: ") {
            self.name.extend_from_slice(value);
        } else if let Some(value) = line.strip_prefix(b"id: ") {
            self.id = Some(value.to_vec());
        }
    }
}

/// Answer of the long poll.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangesAnswer {
    pub(super) events: Vec<Box<RawValue>>,
    pub(super) next_position: String,
    #[serde(default)]
    pub(super) more: bool,
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    pub(super) items: Vec<Box<RawValue>>,
    #[serde(default)]
    pub(super) next_page_token: Option<String>,
    pub(super) meta: PageMeta,
}

/// Metadata of a page.
#[derive(Debug, Deserialize)]
pub(super) struct PageMeta {
    pub(super) position: String,
}

#[test]
fn an_event_split_at_any_byte_is_decoded_once() {
    let bytes =
        b"retry: 2000\nevent: upsert\nid: v1.aa.5\ndata: {\"key\":\"\xc3\xa4\"}\n\n: comment\n\nevent: delete\ndata: {}\n\nevent: lost\n";
    for cut in 0..bytes.len() {
        let (mut lines, mut block, mut seen) = (Lines::default(), SseBlock::default(), Vec::new());
        for chunk in [&bytes[..cut], &bytes[cut..]] {
            lines.feed(chunk, |line| {
                block.line(line, |name, id, data| seen.push((name.to_vec(), id.map(<[u8]>::to_vec), data.to_vec())));
            });
        }
        let expected = [
            (b"upsert".to_vec(), Some(b"v1.aa.5".to_vec()), b"{\"key\":\"\xc3\xa4\"}".to_vec()),
            (b"delete".to_vec(), None, b"{}".to_vec()),
        ];
        assert_eq!(seen, expected, "cut at {cut}");
    }
}
