//! Label selectors in kubectl's syntax: `a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x,y)`,
//! `a>1`, `a<1`, `a` and `!a`, joined by commas.
//!
//! The rules are those of `k8s.io/apimachinery/pkg/labels`. `!=` and `notin` also match objects
//! without the label. `>` and `<` match only values that are whole numbers. Keys and values are
//! validated.

use crate::model::{IdentityLabels, LabelSet, NAMESPACE_LABEL};
use crate::view::{FieldTest, RowField, TextTest};

/// Maximum number of requirements in a selector: far more than people write, and few enough to
/// match quickly.
const REQUIREMENTS_MAX: usize = 32;

/// Maximum length of the name of a key, or of a value (`k8s.io/apimachinery/pkg/util/validation`).
const NAME_LENGTH_MAX: usize = 63;

/// Maximum length of the part of a key before the slash (RFC 1123).
const SUBDOMAIN_LENGTH_MAX: usize = 253;

/// Description of a valid name or value, for errors.
const WORD_RULE: &str = "at most 63 letters, digits, -, _ and ., the first and last of them a letter or digit";

/// A selector, all of whose requirements must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Operator {
    Exists,
    DoesNotExist,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

/// Error: a text is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{requirement:?} is not a valid requirement of a label selector: {reason}")]
pub struct MalformedSelector {
    requirement: String,
    reason: String,
}

impl LabelSelector {
    /// Parses a selector. An empty one matches everything.
    ///
    /// # Errors
    /// [`MalformedSelector`] with the requirement that cannot be parsed.
    pub fn parse(text: &str) -> Result<Self, MalformedSelector> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let malformed = |part: &str, reason: String| MalformedSelector { requirement: part.to_owned(), reason };
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text).map(str::trim) {
            if requirements.len() == REQUIREMENTS_MAX {
                return Err(malformed(part, format!("a selector has at most {REQUIREMENTS_MAX} requirements")));
            }
            requirements.push(Requirement::parse(part).map_err(|reason| malformed(part, reason))?);
        }
        Ok(Self { requirements })
    }

    /// Returns a selector of the identities of a namespace's pods. The name is compared as it is.
    #[must_use]
    pub fn of_namespace(namespace: &str) -> Self {
        let operator = Operator::In(vec![namespace.to_owned()]);
        Self { requirements: vec![Requirement { key: NAMESPACE_LABEL.to_owned(), operator }] }
    }

    /// Returns a selector of the objects that both selectors match.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.requirements.extend(other.requirements);
        self
    }

    /// Returns tests that every packed row with matching labels passes. `has_sources` is true for
    /// the labels of identities, whose keys begin with a source.
    pub(super) fn row_tests(&self, has_sources: bool) -> Vec<FieldTest> {
        let test = |Requirement { key, operator }: &Requirement| {
            let test = match operator {
                Operator::NotIn(_) | Operator::DoesNotExist => return None,
                // a label can have an empty value without a text
                Operator::In(values) if !values.iter().any(String::is_empty) => TextTest::Equals(values.clone()),
                Operator::In(_) | Operator::Exists | Operator::Greater(_) | Operator::Less(_) => TextTest::Exists,
            };
            let bare = key.split_once(':').map(|(_, key)| key).filter(|_| has_sources);
            Some(FieldTest { fields: vec![RowField::Label(bare.unwrap_or(key).to_owned())], test })
        };
        self.requirements.iter().filter_map(test).collect()
    }

    /// Returns whether labels with plain keys match.
    #[must_use]
    pub fn matches(&self, labels: &LabelSet) -> bool {
        self.requirements.iter().all(|requirement| requirement.is_met(labels.get(&requirement.key).map(String::as_str).into_iter()))
    }

    /// Returns whether an identity's labels match. Their keys are `source:key`. A selector key
    /// without a source matches any source, as in Cilium (`pkg/labels`).
    #[must_use]
    pub fn matches_sourced(&self, labels: &IdentityLabels) -> bool {
        self.requirements.iter().all(|requirement| {
            let (source, bare) = match requirement.key.split_once(':') {
                Some(("any", key)) => (None, key),
                Some((source, key)) => (Some(source), key),
                None => (None, requirement.key.as_str()),
            };
            let values = labels.iter().filter(|(label, _)| {
                let (label_source, label_key) = label.split_once(':').unwrap_or(("", label));
                label_key == bare && source.is_none_or(|source| source == label_source)
            });
            requirement.is_met(values.map(|(_, value)| value))
        })
    }
}

impl Requirement {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it is empty: remove the extra comma".to_owned());
        }
        if let Some(key) = text.strip_prefix('!') {
            return Self::new(key, Operator::DoesNotExist);
        }
        if let Some((before, list)) = text.split_once('(') {
            let list = list.strip_suffix(')').ok_or("its parenthesis is not closed")?;
            return Self::parse_set(before, list);
        }
        let exactly = |value: &str| checked_value(value).map(|value| vec![value]);
        if let Some((key, value)) = text.split_once("!=") {
            return Self::new(key, Operator::NotIn(exactly(value)?));
        }
        if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            return Self::new(key, Operator::In(exactly(value)?));
        }
        if let Some((key, number)) = text.split_once('>') {
            return Self::new(key, Operator::Greater(whole_number(number)?));
        }
        if let Some((key, number)) = text.split_once('<') {
            return Self::new(key, Operator::Less(whole_number(number)?));
        }
        Self::new(text, Operator::Exists)
    }

    /// Parses `key in (values)` or `key notin (values)`, given the parts before and inside the
    /// parentheses.
    fn parse_set(before: &str, list: &str) -> Result<Self, String> {
        let malformed = || format!("expected a key and in or notin before the values, not {:?}", before.trim());
        let (key, word) = before.trim().rsplit_once(char::is_whitespace).ok_or_else(malformed)?;
        if list.trim().is_empty() {
            return Err(format!("{word} needs at least one value; write (,) for an empty value"));
        }
        let values = list.split(',').map(checked_value).collect::<Result<_, _>>()?;
        match word {
            "in" => Self::new(key, Operator::In(values)),
            "notin" => Self::new(key, Operator::NotIn(values)),
            _ => Err(malformed()),
        }
    }

    fn new(key: &str, operator: Operator) -> Result<Self, String> {
        let key = key.trim();
        check_key(key)?;
        Ok(Self { key: key.to_owned(), operator })
    }

    fn is_met<'a>(&self, mut values: impl Iterator<Item = &'a str>) -> bool {
        match &self.operator {
            Operator::Exists => values.next().is_some(),
            Operator::DoesNotExist => values.next().is_none(),
            Operator::In(allowed) => values.any(|value| allowed.iter().any(|allowed| allowed == value)),
            Operator::NotIn(refused) => !values.any(|value| refused.iter().any(|refused| refused == value)),
            Operator::Greater(bound) => values.any(|value| value.parse::<i64>().is_ok_and(|value| value > *bound)),
            Operator::Less(bound) => values.any(|value| value.parse::<i64>().is_ok_and(|value| value < *bound)),
        }
    }
}

/// Checks a key as Kubernetes does (`IsQualifiedName`, `k8s.io/apimachinery/pkg/util/validation`):
/// a name, optionally after a DNS subdomain and a slash. Keys of identity labels may begin with a
/// source and a colon (`pkg/labels`).
fn check_key(key: &str) -> Result<(), String> {
    let qualified = match key.split_once(':') {
        Some((source, rest)) if is_word(source) => rest,
        Some((source, _)) => return Err(format!("{source:?} before the colon is not a label source")),
        None => key,
    };
    let (prefix, name) = qualified.split_once('/').map_or((None, qualified), |(prefix, name)| (Some(prefix), name));
    if let Some(prefix) = prefix
        && !is_subdomain(prefix)
    {
        return Err(format!(
            "{prefix:?} before the slash of a key is not a DNS subdomain: lower-case letters, digits, - and . up to {SUBDOMAIN_LENGTH_MAX}"
        ));
    }
    if name.is_empty() {
        return Err("the name of the key is empty".to_owned());
    }
    if name.len() > NAME_LENGTH_MAX || !is_word(name) {
        return Err(format!("{name:?} is not a valid key name: {WORD_RULE}"));
    }
    Ok(())
}

/// Checks a value as Kubernetes does (`IsValidLabelValue`): empty, or of the form of a key's name.
fn checked_value(text: &str) -> Result<String, String> {
    let value = text.trim();
    if value.is_empty() || (value.len() <= NAME_LENGTH_MAX && is_word(value)) {
        return Ok(value.to_owned());
    }
    Err(format!("{value:?} is not a valid value: {WORD_RULE}"))
}

/// Parses the number that `>` and `<` compare with. It must also be a valid value, so it has no
/// sign.
fn whole_number(text: &str) -> Result<i64, String> {
    let value = checked_value(text)?;
    value.parse().map_err(|_| format!("{value:?} is not a whole number, which > and < need"))
}

/// Returns whether a text consists of letters and digits, with `-`, `_` and `.` between them, and
/// is not empty.
fn is_word(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    ends(text.chars().next()) && ends(text.chars().next_back()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Returns whether a text is an `IsDNS1123Subdomain`: parts of lower-case letters and digits, with
/// `-` between them, joined by `.`.
fn is_subdomain(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= SUBDOMAIN_LENGTH_MAX && text.split('.').all(|part| is_word(part) && part.chars().all(allowed))
}

fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> LabelSet {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn requirements_hold_as_in_kubernetes() {
        let cart = labels(&[("app", "cart"), ("tier", "web"), ("empty", ""), ("size", "12")]);
        let cases = [
            ("", true),
            ("app=cart", true),
            ("app==cart", true),
            ("app=db", false),
            ("app!=db", true),
            ("missing!=db", true),
            ("app!=cart", false),
            ("app in (db, cart)", true),
            ("app in (db)", false),
            ("app notin (db)", true),
            ("missing notin (db)", true),
            ("app notin (db,cart)", false),
            ("app", true),
            ("missing", false),
            ("!missing", true),
            ("!app", false),
            ("empty=", true),
            ("app=cart,tier in (web,api),!missing", true),
            ("app=cart,tier=api", false),
            ("size>11", true),
            ("size > 12", false),
            ("size<13", true),
            ("size<12", false),
            ("size>0", true),
            (" app = cart , ! missing ", true),
            ("app=cart,tier in (web,api),example.com/a.b_c!=x", true),
            ("app>1", false),
            ("missing<1", false),
            ("empty in (,)", true),
            ("empty in (x,)", true),
            ("app in (,)", false),
            ("missing notin (,)", true),
        ];
        for (text, expected) in cases {
            assert_eq!(LabelSelector::parse(text).unwrap().matches(&cart), expected, "{text}");
        }
    }

    #[test]
    fn a_key_without_a_source_matches_any_source() {
        let identity = IdentityLabels::from(labels(&[
            ("k8s:app", "cart"),
            ("reserved:host", ""),
            ("k8s:io.kubernetes.pod.namespace", "shop"),
            ("k8s:tier", "web"),
            ("container:tier", "api"),
            ("cidr:10.0.0.0/8", ""),
        ]));
        let cases = [
            ("app=cart", true),
            ("k8s:app=cart", true),
            ("any:app=cart", true),
            ("container:app=cart", false),
            ("host", true),
            ("!app", false),
            ("!any:app", false),
            ("!container:app", true),
            ("reserved:host", true),
            ("k8s:host", false),
            ("app!=cart", false),
            ("container:app!=cart", true),
            ("k8s:app in (cart,db),io.kubernetes.pod.namespace=shop", true),
            // two sources have the key: `=` needs one value that matches, and `!=` fails if any
            // value is the excluded one
            ("tier=api", true),
            ("tier=web", true),
            ("k8s:tier=api", false),
            ("tier!=api", false),
            ("k8s:tier!=api", true),
            ("cidr:10.0.0.0/8", true),
            ("10.0.0.0/8", true),
        ];
        for (text, expected) in cases {
            assert_eq!(LabelSelector::parse(text).unwrap().matches_sourced(&identity), expected, "{text}");
        }
    }

    #[test]
    fn malformed_selectors_are_rejected_as_by_kubectl_with_a_reason() {
        let long = "a".repeat(64);
        let cases = [
            (",", "it is empty: remove the extra comma"),
            ("a,", "it is empty: remove the extra comma"),
            ("a,,b", "it is empty: remove the extra comma"),
            ("=b", "the name of the key is empty"),
            ("!", "the name of the key is empty"),
            (">1", "the name of the key is empty"),
            ("example.com/=b", "the name of the key is empty"),
            ("k8s:=b", "the name of the key is empty"),
            ("a in", r#""a in" is not a valid key name"#),
            ("a in x", r#""a in x" is not a valid key name"#),
            ("a b", r#""a b" is not a valid key name"#),
            ("-a=b", r#""-a" is not a valid key name"#),
            ("a.=b", r#""a." is not a valid key name"#),
            ("ä=b", r#""ä" is not a valid key name"#),
            ("!a=b", r#""a=b" is not a valid key name"#),
            (&long, "is not a valid key name"),
            ("a/b/c", r#""b/c" is not a valid key name"#),
            ("A.example/b", r#""A.example" before the slash of a key is not a DNS subdomain"#),
            ("/b", r#""" before the slash of a key is not a DNS subdomain"#),
            ("a_b/c=d", r#""a_b" before the slash of a key is not a DNS subdomain"#),
            ("a..b/c=d", r#""a..b" before the slash of a key is not a DNS subdomain"#),
            (":a=b", r#""" before the colon is not a label source"#),
            ("k8s:a:b", r#""a:b" is not a valid key name"#),
            ("a=b c", r#""b c" is not a valid value"#),
            ("a=-b", r#""-b" is not a valid value"#),
            ("a=b/c", r#""b/c" is not a valid value"#),
            ("a=b=c", r#""b=c" is not a valid value"#),
            ("a=>1", r#"">1" is not a valid value"#),
            ("a in (b c)", r#""b c" is not a valid value"#),
            ("a in (b", "its parenthesis is not closed"),
            ("a=(b)", r#"expected a key and in or notin before the values, not "a=""#),
            ("a like (b)", r#"expected a key and in or notin before the values, not "a like""#),
            ("in (b)", r#"expected a key and in or notin before the values, not "in""#),
            ("a in ()", "in needs at least one value; write (,) for an empty value"),
            ("a notin ( )", "notin needs at least one value; write (,) for an empty value"),
            ("a>b", r#""b" is not a whole number, which > and < need"#),
            ("a>", r#""" is not a whole number, which > and < need"#),
            ("a<1.5", r#""1.5" is not a whole number, which > and < need"#),
            ("a<-1", r#""-1" is not a valid value"#),
            ("a>9223372036854775808", r#""9223372036854775808" is not a whole number, which > and < need"#),
        ];
        for (text, reason) in cases {
            let error = LabelSelector::parse(text).unwrap_err();
            assert!(error.reason.starts_with(reason) || text == long, "{text}: {error}");
        }
        for (length, pattern) in [(63, "{}"), (63, "a={}"), (63, "k8s:{}"), (253, "{}/a")] {
            let parses = |length: usize| LabelSelector::parse(&pattern.replace("{}", &"b".repeat(length))).is_ok();
            assert_eq!((parses(length), parses(length + 1)), (true, false), "{pattern}");
        }
        let many = vec!["a"; REQUIREMENTS_MAX].join(",");
        assert!(LabelSelector::parse(&many).is_ok() && LabelSelector::parse(&(many + ",a")).is_err());
        let error = LabelSelector::parse("app=cart,a=b c").unwrap_err().to_string();
        let word = "at most 63 letters, digits, -, _ and ., the first and last of them a letter or digit";
        assert_eq!(error, format!(r#""a=b c" is not a valid requirement of a label selector: "b c" is not a valid value: {word}"#));
    }
}
