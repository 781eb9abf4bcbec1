//! kubectl's JSONPath: the templates of `-o jsonpath=…`, and the paths of `--sort-by` and
//! `-o custom-columns=…`.
//!
//! Implements the part of the syntax that people type ([`SUPPORTED`]) and refuses everything else.
//! Crates for RFC 9535 have other rules: a path begins with `$`, and there are no templates.

use serde_json::Value;

/// Syntax of a path and of a template, for error messages.
const SUPPORTED: &str = r#"supported are .name, ['name'], [0], [-1], [0:2], [*], [?(@.name=="text")], {range .items[*]}…{end} and {"\n"}; for anything else use -o json and jq"#;

/// Text with paths in braces.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct JsonPathTemplate(Vec<TemplatePart>);

#[derive(Debug, Clone, PartialEq)]
enum TemplatePart {
    Text(String),
    Path(JsonPath),
    /// Parts that are repeated for each value of the path.
    Range(JsonPath, Vec<TemplatePart>),
}

/// Path to values in a JSON document.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct JsonPath {
    /// True if the path begins at the document and not at the current value of a `range`.
    from_root: bool,
    steps: Vec<PathStep>,
}

#[derive(Debug, Clone, PartialEq)]
enum PathStep {
    Member(String),
    /// An item of an array; a negative index counts from the end.
    Index(i64),
    /// Items of an array from the first index to before the second one.
    Slice(Option<i64>, Option<i64>),
    /// All items of an array, or all members of an object.
    Every,
    /// Items at which the path has a value and, with a comparison, one that is equal or not equal.
    Matching(JsonPath, Option<(Comparison, Value)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
}

impl JsonPathTemplate {
    /// Parses the text after `jsonpath=`.
    pub(in crate::cli) fn parse(template: &str) -> Result<Self, String> {
        let (mut parts, mut outer) = (Vec::new(), Vec::new());
        let mut rest = template;
        while let Some((text, after)) = rest.split_once('{') {
            push_text(&mut parts, text);
            let end = find_unquoted(after, '}').ok_or_else(|| format!("{template:?} has a brace that is not closed"))?;
            let expression = after[..end].trim();
            rest = &after[end + 1..];
            if expression == "end" {
                let (path, before) = outer.pop().ok_or("{end} has no {range …} before it")?;
                let repeated = std::mem::replace(&mut parts, before);
                parts.push(TemplatePart::Range(path, repeated));
            } else if let Some(path) = expression.strip_prefix("range ") {
                outer.push((JsonPath::parse(path.trim())?, std::mem::take(&mut parts)));
            } else if let Some(text) = unquoted(expression) {
                push_text(&mut parts, &text);
            } else {
                parts.push(TemplatePart::Path(JsonPath::parse(expression)?));
            }
        }
        push_text(&mut parts, rest);
        if !outer.is_empty() {
            return Err("{range …} has no {end} after it".to_owned());
        }
        if parts.iter().all(|part| matches!(part, TemplatePart::Text(_))) {
            return Err(format!("{template:?} has no path in braces, such as {{.items[*].name}}"));
        }
        Ok(Self(parts))
    }

    /// Returns the text of the template for a document. A path without values is empty, and several
    /// values are separated by blanks, as in kubectl.
    pub(in crate::cli) fn text(&self, document: &Value) -> String {
        let mut out = String::new();
        write_parts(&self.0, document, document, &mut out);
        out
    }
}

fn push_text(parts: &mut Vec<TemplatePart>, text: &str) {
    if !text.is_empty() {
        parts.push(TemplatePart::Text(text.to_owned()));
    }
}

fn write_parts(parts: &[TemplatePart], root: &Value, current: &Value, out: &mut String) {
    for part in parts {
        match part {
            TemplatePart::Text(text) => out.push_str(text),
            TemplatePart::Path(path) => {
                let texts: Vec<String> = path.select(root, current).into_iter().map(value_text).collect();
                out.push_str(&texts.join(" "));
            }
            TemplatePart::Range(path, repeated) => {
                path.select(root, current).into_iter().for_each(|value| write_parts(repeated, root, value, out));
            }
        }
    }
}

/// Returns a value as kubectl prints it: texts without quotation marks, objects and arrays as JSON.
pub(in crate::cli) fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl JsonPath {
    /// Parses a path outside a template, which may omit the braces and the first dot.
    pub(in crate::cli) fn parse_relaxed(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text).trim();
        let dot = if inner.starts_with(['.', '[', '$', '@']) { "" } else { "." };
        let path = Self::parse(&format!("{dot}{inner}"))?;
        if path.steps.is_empty() { Err(format!("{text:?} names no member, such as .name")) } else { Ok(path) }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let unsupported = || format!("{text:?} is not a supported path: {SUPPORTED}");
        let (from_root, mut rest) = match text.strip_prefix('$') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('@').unwrap_or(text)),
        };
        if text.is_empty() {
            return Err(unsupported());
        }
        let mut steps = Vec::new();
        while !rest.is_empty() && rest != "." {
            if let Some(after) = rest.strip_prefix('[') {
                let end = find_unquoted(after, ']').ok_or_else(unsupported)?;
                steps.push(parse_subscript(after[..end].trim()).ok_or_else(unsupported)?);
                rest = &after[end + 1..];
                continue;
            }
            let after = rest.strip_prefix('.').ok_or_else(unsupported)?;
            rest = after;
            if !after.starts_with('[') {
                let (name, after) = split_name(after).ok_or_else(unsupported)?;
                steps.push(if name == "*" { PathStep::Every } else { PathStep::Member(name) });
                rest = after;
            }
        }
        Ok(Self { from_root, steps })
    }

    /// Returns the values of the path in a document, in the document's order.
    pub(in crate::cli) fn values<'v>(&self, document: &'v Value) -> Vec<&'v Value> {
        self.select(document, document)
    }

    fn select<'v>(&self, root: &'v Value, current: &'v Value) -> Vec<&'v Value> {
        let start = vec![if self.from_root { root } else { current }];
        self.steps.iter().fold(start, |values, step| values.into_iter().flat_map(|value| step.select(root, value)).collect())
    }
}

impl PathStep {
    fn select<'v>(&self, root: &'v Value, value: &'v Value) -> Vec<&'v Value> {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        match self {
            Self::Member(name) => value.get(name).into_iter().collect(),
            Self::Index(index) => position(*index, items.len()).and_then(|index| items.get(index)).into_iter().collect(),
            Self::Slice(first, end) => {
                let bound = |index: &i64| position(*index, items.len()).unwrap_or(0).min(items.len());
                let (first, end) = (first.as_ref().map_or(0, bound), end.as_ref().map_or(items.len(), bound));
                items.get(first..end).unwrap_or_default().iter().collect()
            }
            Self::Every => match value {
                Value::Object(members) => members.values().collect(),
                _ => items.iter().collect(),
            },
            Self::Matching(path, comparison) => {
                let is_match = |item: &&Value| {
                    let values = path.select(root, item);
                    match comparison {
                        None => !values.is_empty(),
                        Some((Comparison::Equal, wanted)) => values.contains(&wanted),
                        Some((Comparison::NotEqual, wanted)) => !values.contains(&wanted),
                    }
                };
                items.iter().filter(is_match).collect()
            }
        }
    }
}

/// Returns the position of an index that may count from the end; `None` before the first item.
fn position(index: i64, count: usize) -> Option<usize> {
    let count = i64::try_from(count).ok()?;
    usize::try_from(if index < 0 { count + index } else { index }).ok()
}

/// Splits a member's name from the rest of a path. A backslash makes a dot part of the name, as in
/// `.labels.app\.kubernetes\.io/name`. Returns `None` without a valid name.
fn split_name(text: &str) -> Option<(String, &str)> {
    let (mut name, mut is_escaped) = (String::new(), false);
    for (index, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => {
                name.push(letter);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '.' | '[' => return (!name.is_empty()).then_some((name, &text[index..])),
            _ if letter.is_whitespace() || "(){}]|,\"'".contains(letter) => return None,
            _ => name.push(letter),
        }
    }
    (!name.is_empty() && !is_escaped).then_some((name, ""))
}

/// Parses the text between brackets.
fn parse_subscript(text: &str) -> Option<PathStep> {
    if text == "*" {
        return Some(PathStep::Every);
    }
    if let Some(name) = unquoted(text) {
        return Some(PathStep::Member(name));
    }
    if let Some(condition) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        return parse_condition(condition.trim());
    }
    if let Some((first, end)) = text.split_once(':') {
        let bound = |text: &str| if text.trim().is_empty() { Some(None) } else { text.trim().parse().ok().map(Some) };
        return Some(PathStep::Slice(bound(first)?, bound(end)?));
    }
    text.parse().ok().map(PathStep::Index)
}

/// Parses a condition such as `@.type=="InternalIP"`, or `@.zone` for items that have the member.
fn parse_condition(text: &str) -> Option<PathStep> {
    let operators = [("==", Comparison::Equal), ("!=", Comparison::NotEqual)];
    let found = operators.iter().filter_map(|(sign, comparison)| Some((text.find(sign)?, sign.len(), *comparison))).min_by_key(|one| one.0);
    let (path, comparison) = match found {
        None => (text, None),
        Some((start, length, comparison)) => {
            let wanted = text[start + length..].trim();
            let wanted = unquoted(wanted).map(Value::String).or_else(|| serde_json::from_str(wanted).ok())?;
            (text[..start].trim(), Some((comparison, wanted)))
        }
    };
    // `<` and other operators would otherwise become part of a name
    if !path.starts_with('@') || path.contains(['<', '>', '=', '!', '&', '~']) {
        return None;
    }
    Some(PathStep::Matching(JsonPath::parse(path).ok()?, comparison))
}

/// Returns the index of the first `end` that is outside quotation marks.
fn find_unquoted(text: &str, end: char) -> Option<usize> {
    let (mut quote, mut is_escaped) = (None, false);
    text.char_indices().find_map(|(index, letter)| {
        if is_escaped {
            is_escaped = false;
        } else if letter == '\\' {
            is_escaped = true;
        } else if quote == Some(letter) {
            quote = None;
        } else if quote.is_none() && (letter == '"' || letter == '\'') {
            quote = Some(letter);
        } else if quote.is_none() && letter == end {
            return Some(index);
        }
        None
    })
}

/// Returns the content of a text in double or single quotation marks, with JSON's escapes; `None`
/// if it is not one such text.
fn unquoted(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        // two texts in quotation marks with something between them, such as `'a' && @.b=='c'`
        if inner.replace(r"\\", "").replace(r"\'", "").contains('\'') {
            return None;
        }
        let inner = inner.replace("\\'", "'").replace('"', "\\\"");
        return serde_json::from_str(&format!("\"{inner}\"")).ok();
    }
    text.starts_with('"').then(|| serde_json::from_str(text).ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({"items": [
            {"name": "worker-1", "cluster": "paris", "port": 80, "labels": {"app.kubernetes.io/name": "cart"}, "shared": true,
                "addresses": [{"type": "InternalIP", "ip": "172.18.1.1"}, {"type": "CiliumInternalIP", "ip": "10.1.1.10"}]},
            {"name": "worker-2", "cluster": "tokyo", "port": 8080, "addresses": []},
        ]})
    }

    #[test]
    fn templates_are_written_as_kubectl_does() {
        let cases = [
            ("{.items[*].name}", "worker-1 worker-2"),
            (r#"{range .items[*]}{.name}{"\t"}{.port}{"\n"}{end}"#, "worker-1\t80\nworker-2\t8080\n"),
            ("{range .items[*]}{.name}={.addresses[0].ip};{end}", "worker-1=172.18.1.1;worker-2=;"),
            ("first: {.items[0].name}, last: {$.items[-1].cluster}", "first: worker-1, last: tokyo"),
            ("{.items[0:1].name}{'\\n'}{.items[1:].name}", "worker-1\nworker-2"),
            (r"{.items[0].labels.app\.kubernetes\.io/name}", "cart"),
            ("{.items[0]['labels']['app.kubernetes.io/name']}", "cart"),
            ("{.items[0].labels}", r#"{"app.kubernetes.io/name":"cart"}"#),
            (r#"{.items[0].addresses[?(@.type=="InternalIP")].ip}"#, "172.18.1.1"),
            (r#"{.items[?(@.cluster != "paris")].name}"#, "worker-2"),
            ("{.items[?(@.port==80)].name} {.items[?(@.shared)].name}", "worker-1 worker-1"),
            ("{.items[0].labels.*}{.items[7].name}{.nothing.at.all}", "cart"),
            (r#"{range .items[*]}{range .addresses[*]}{$.items[1].name}:{@.ip}{" "}{end}{end}"#, "worker-2:172.18.1.1 worker-2:10.1.1.10 "),
            (r#"{"a}b"}{.items[1].port}"#, "a}b8080"),
        ];
        for (template, expected) in cases {
            let parsed = JsonPathTemplate::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"));
            assert_eq!(parsed.text(&document()), expected, "{template}");
        }
    }

    #[test]
    fn unsupported_syntax_is_refused() {
        let unsupported = [
            "{..name}",
            "{.items[?(@.port>80)].name}",
            "{.items[?(@.a==\"x\" && @.b==1)]}",
            "{.items[?(@.a=='x' && @.b=='y')]}",
            "{'a' 'b'}",
            "{.items[0,1]}",
            "{.items[*].name .port}",
            "{name}",
            "{}",
            "{.a[}",
            "{.items[x]}",
        ];
        for template in unsupported {
            let error = JsonPathTemplate::parse(template).unwrap_err();
            assert!(error.contains("is not a supported path: supported are .name,"), "{template}: {error}");
        }
        for (template, expected) in [
            (".items[*].name", r#"".items[*].name" has no path in braces, such as {.items[*].name}"#),
            ("{.name", r#""{.name" has a brace that is not closed"#),
            ("{range .items[*]}{.name}", "{range …} has no {end} after it"),
            ("{.name}{end}", "{end} has no {range …} before it"),
        ] {
            assert_eq!(JsonPathTemplate::parse(template).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_single_path_needs_no_braces() {
        for text in [".items[1].name", "items[1].name", "{.items[1].name}", "$.items[1].name"] {
            assert_eq!(JsonPath::parse_relaxed(text).unwrap().values(&document()), [&json!("worker-2")], "{text}");
        }
        assert_eq!(JsonPath::parse_relaxed("").unwrap_err(), r#""" names no member, such as .name"#);
    }
}
