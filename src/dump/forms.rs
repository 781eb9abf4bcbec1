//! Parsers of the forms of a dump: the file's shape decides which one parses it. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// Separator of key and value in the text of `cilium-dbg kvstore get` (Cilium's
/// `cilium-dbg/cmd/kvstore_get.go`).
const SEPARATOR: &[u8] = b" => ";

/// Prefix of each key that Cilium writes.
const KEY_PREFIX: &str = "cilium/";

/// Byte order mark that Windows puts before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Line around the output of a command in a file of `cilium-bugtool`.
const FENCE: &[u8] = b"\n```\n";

/// The tool that wrote a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileForm {
    /// Text of `cilium-dbg kvstore get --recursive`.
    KvstoreText,
    /// JSON of the same command, as in a sysdump.
    KvstoreJson,
    /// JSON of `etcdctl get --prefix`.
    Etcdctl,
    /// Lines of `meshkeep store export`.
    StoreExport,
    /// Lines of `/v1/entries`.
    Entries,
}

/// One key of a dump, with what its form says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DumpPair {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// Revision of the last put; `None` if the form has none.
    pub(super) revision: Option<i64>,
    /// Lease of the key; `None` if it has none or the form has no leases.
    pub(super) lease: Option<i64>,
}

/// Content of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParsedDumpFile {
    pub(super) form: FileForm,
    pub(super) pairs: Vec<DumpPair>,
    /// True if the file says, or its shape shows, that keys are missing.
    pub(super) is_partial: bool,
}

/// The reason why a file cannot be parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FormError {
    /// No form has this shape.
    Unrecognised,
    /// The shape is known, but the content is wrong.
    Malformed(String),
}

impl FileForm {
    /// Returns the name of the tool, for messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::KvstoreText => "cilium-dbg kvstore get --recursive",
            Self::KvstoreJson => "cilium-dbg kvstore get --recursive -o json",
            Self::Etcdctl => "etcdctl get --prefix -w json",
            Self::StoreExport => "meshkeep store export",
            Self::Entries => "/v1/entries",
        }
    }
}

/// Recognises the form of a file and returns its keys.
///
/// # Errors
/// [`FormError`].
pub(super) fn parse(bytes: &[u8]) -> Result<ParsedDumpFile, FormError> {
    let bytes = without_frame(bytes);
    let Some(object) = bytes.strip_prefix(b"{") else { return parse_text(bytes) };
    match first_member(object) {
        None if object.trim_ascii_start().starts_with(b"}") => {
            Ok(ParsedDumpFile { form: FileForm::KvstoreJson, pairs: Vec::new(), is_partial: false })
        }
        None => Err(FormError::Unrecognised),
        Some(b"items") => {
            Err(FormError::Malformed("it is one page of a list: request /v1/entries with `Accept: application/x-ndjson`".to_owned()))
        }
        Some(b"header" | b"kvs" | b"count" | b"more") => parse_etcdctl(bytes),
        Some(name) if name.starts_with(KEY_PREFIX.as_bytes()) => parse_kvstore_json(bytes),
        Some(_) => parse_lines(bytes),
    }
}

/// Returns the output of the command in a file, without what other tools put around it: a byte
/// order mark, a block of Markdown and the first log lines.
pub(super) fn without_frame(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    after_log(unfenced(bytes.trim_ascii_start()))
}

/// Returns the output of the command in a file of `cilium-bugtool`, which puts it into a block of
/// Markdown.
fn unfenced(bytes: &[u8]) -> &[u8] {
    let start = memmem::find(bytes, FENCE).filter(|_| bytes.starts_with(b"# "));
    let Some(body) = start.and_then(|start| bytes.get(start + FENCE.len()..)) else { return bytes };
    memmem::rfind(body, FENCE).and_then(|end| body.get(..end)).unwrap_or(body).trim_ascii_start()
}

/// Returns the output after the log lines at its start: `cilium-dbg` logs to standard output.
fn after_log(mut bytes: &[u8]) -> &[u8] {
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n').filter(|end| is_log_line(&bytes[..*end])) {
        bytes = &bytes[end + 1..];
    }
    bytes
}

/// Returns whether a line is one of Cilium's log, as Go's `slog` or logrus writes it.
fn is_log_line(line: &[u8]) -> bool {
    (line.starts_with(b"time=") || line.starts_with(b"level=")) && memmem::find(line, b" msg=").is_some()
}

/// Returns the first name in the text of a JSON object. `None` if the object is empty or damaged.
fn first_member(object: &[u8]) -> Option<&[u8]> {
    let name = object.trim_ascii_start().strip_prefix(b"\"")?;
    name.split(|byte| *byte == b'"').next()
}

/// Parses `KEY => VALUE`. A value may contain line breaks: a line that does not begin with a key
/// belongs to the value before it. Lines before the first key are messages of tools, and log lines
/// may follow.
fn parse_text(bytes: &[u8]) -> Result<ParsedDumpFile, FormError> {
    let mut pairs: Vec<DumpPair> = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match (split_line(line), pairs.last_mut()) {
            (Some((key, value)), _) => pairs.push(DumpPair { key: key.to_owned(), value: value.to_vec(), revision: None, lease: None }),
            (None, Some(before)) if !is_log_line(line) => before.value.extend_from_slice(line),
            (None, _) => {}
        }
    }
    for pair in &mut pairs {
        // the line break of the printed line
        pair.value.pop_if(|last| *last == b'\n');
    }
    if pairs.is_empty() {
        return Err(FormError::Unrecognised);
    }
    Ok(ParsedDumpFile { form: FileForm::KvstoreText, pairs, is_partial: false })
}

fn split_line(line: &[u8]) -> Option<(&str, &[u8])> {
    if !line.starts_with(KEY_PREFIX.as_bytes()) {
        return None;
    }
    let end = memmem::find(line, SEPARATOR)?;
    Some((str::from_utf8(&line[..end]).ok()?, &line[end + SEPARATOR.len()..]))
}

/// Value of `kvstore.KeyValuePairs` in Cilium's `pkg/kvstore`.
#[derive(Deserialize)]
struct KvstoreValue {
    #[serde(rename = "Data")]
    data: Option<String>,
    #[serde(rename = "ModRevision")]
    revision: Option<i64>,
    #[serde(rename = "LeaseID")]
    lease: Option<i64>,
}

fn parse_kvstore_json(bytes: &[u8]) -> Result<ParsedDumpFile, FormError> {
    let values: BTreeMap<String, KvstoreValue> = from_json(bytes)?;
    let convert = |(key, value): (String, KvstoreValue)| {
        let KvstoreValue { data, revision, lease } = value;
        let value = decode_base64(&key, &data.unwrap_or_default())?;
        Ok(DumpPair { key, value, revision: known(revision), lease: known(lease) })
    };
    Ok(ParsedDumpFile { form: FileForm::KvstoreJson, pairs: values.into_iter().map(convert).collect::<Result<_, _>>()?, is_partial: false })
}

/// Answer of etcd's `Range` as etcdctl prints it.
#[derive(Deserialize)]
struct EtcdctlAnswer {
    #[serde(default)]
    kvs: Vec<EtcdctlPair>,
    #[serde(default)]
    more: bool,
}

#[derive(Deserialize)]
struct EtcdctlPair {
    key: String,
    value: Option<String>,
    mod_revision: Option<i64>,
    lease: Option<i64>,
}

fn parse_etcdctl(bytes: &[u8]) -> Result<ParsedDumpFile, FormError> {
    let answer: EtcdctlAnswer = from_json(bytes)?;
    let mut pairs = Vec::with_capacity(answer.kvs.len());
    for pair in answer.kvs {
        // Cilium's keys are text; other keys are not of Cilium
        let Ok(key) = String::from_utf8(decode_base64(&pair.key, &pair.key)?) else { continue };
        let value = decode_base64(&key, &pair.value.unwrap_or_default())?;
        pairs.push(DumpPair { key, value, revision: known(pair.mod_revision), lease: known(pair.lease) });
    }
    Ok(ParsedDumpFile { form: FileForm::Etcdctl, pairs, is_partial: answer.more })
}

/// Line of `meshkeep store export` or of `/v1/entries`. Both have `modRevision`: in the former it
/// is the source's, in the latter it is meshkeep's sequence.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EntryLine {
    key: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    mod_revision: Option<i64>,
    source_revision: Option<i64>,
    lease: Option<i64>,
    /// Only in an export.
    create_sequence: Option<IgnoredAny>,
    /// Only in the last line of `/v1/entries`.
    meta: Option<IgnoredAny>,
}

fn parse_lines(bytes: &[u8]) -> Result<ParsedDumpFile, FormError> {
    let (mut pairs, mut form, mut has_end) = (Vec::new(), None, false);
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let malformed = |reason: String| FormError::Malformed(format!("line {}: {reason}", number + 1));
        let line: EntryLine = serde_json::from_slice(line).map_err(|error| malformed(error.to_string()))?;
        has_end |= line.meta.is_some();
        let Some(key) = line.key.filter(|_| line.value.is_some() || line.value_base64.is_some()) else {
            if line.meta.is_some() {
                continue;
            }
            return Err(if form.is_none() { FormError::Unrecognised } else { malformed("it has no key or no value".to_owned()) });
        };
        let is_export = line.create_sequence.is_some();
        form = Some(if is_export { FileForm::StoreExport } else { FileForm::Entries });
        let revision = if is_export { line.mod_revision } else { line.source_revision };
        let value = match (line.value, line.value_base64) {
            (Some(text), _) if is_export => text.into_bytes(),
            (text, base64) => decode_base64(&key, &base64.or(text).unwrap_or_default())?,
        };
        pairs.push(DumpPair { key, value, revision: known(revision), lease: known(line.lease) });
    }
    let form = form.or(has_end.then_some(FileForm::Entries)).ok_or(FormError::Unrecognised)?;
    Ok(ParsedDumpFile { form, pairs, is_partial: form == FileForm::Entries && !has_end })
}

/// Returns a revision or lease. In all forms, 0 means that there is none.
fn known(number: Option<i64>) -> Option<i64> {
    number.filter(|number| *number > 0)
}

/// Parses a JSON document, after which only log lines may follow.
pub(super) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FormError> {
    let mut documents = serde_json::Deserializer::from_slice(bytes).into_iter();
    let first = documents.next().ok_or(FormError::Unrecognised)?.map_err(|error| FormError::Malformed(error.to_string()))?;
    let rest = bytes.get(documents.byte_offset()..).unwrap_or_default();
    match rest.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty() && !is_log_line(line)) {
        None => Ok(first),
        Some(line) => {
            Err(FormError::Malformed(format!("after the JSON follows {:?}", String::from_utf8_lossy(&line[..line.len().min(40)]))))
        }
    }
}

fn decode_base64(key: &str, text: &str) -> Result<Vec<u8>, FormError> {
    STANDARD.decode(text).map_err(|error| FormError::Malformed(format!("the value of {key:?} is not base64: {error}")))
}
