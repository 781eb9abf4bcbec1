//! Label selectors in kubectl's syntax: `a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x,y)`, `a>1`, `a<1`, `a`, `!a`, joined by commas.
//!
//! The rules are those of `k8s.io/apimachinery/pkg/labels`: `!=` and `notin` also match where the label is missing,
//! `>` and `<` compare whole numbers and match nothing else.

use crate::model::LabelSet;

/// How many requirements one selector may have: far more than people write, few enough to match quickly.
const REQUIREMENTS_MAX: usize = 32;

/// A selector: every requirement must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

/// Why a text is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a label selector: write a=b, a!=b, a in (b,c), a notin (b,c), a>1, a<1, a or !a, joined by commas")]
pub struct MalformedSelector(String);

impl LabelSelector {
    /// Reads a selector. An empty one matches everything.
    ///
    /// # Errors
    /// [`MalformedSelector`] with the requirement that could not be read.
    pub fn parse(text: &str) -> Result<Self, MalformedSelector> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if part.is_empty() && text.trim().is_empty() {
                continue;
            }
            requirements.push(Requirement::parse(part).ok_or_else(|| MalformedSelector(part.to_owned()))?);
        }
        if requirements.len() > REQUIREMENTS_MAX {
            return Err(MalformedSelector(format!("{} requirements (at most {REQUIREMENTS_MAX})", requirements.len())));
        }
        Ok(Self { requirements })
    }

    /// Whether labels with plain keys match.
    #[must_use]
    pub fn matches(&self, labels: &LabelSet) -> bool {
        self.requirements.iter().all(|requirement| requirement.holds(labels.get(&requirement.key).into_iter()))
    }

    /// Whether an identity's labels match. Their keys are `source:key`; a selector key without a source matches any source, as
    /// Cilium's do (`pkg/labels`).
    #[must_use]
    pub fn matches_sourced(&self, labels: &LabelSet) -> bool {
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
            requirement.holds(values.map(|(_, value)| value))
        })
    }
}

impl Requirement {
    fn parse(text: &str) -> Option<Self> {
        if let Some(key) = text.strip_prefix('!') {
            return Self::new(key, Test::Missing);
        }
        if let Some((key, list)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
            let (key, operator) = key.trim().rsplit_once(char::is_whitespace)?;
            let values: Vec<String> = list.split(',').map(|value| value.trim().to_owned()).collect();
            if !values.iter().all(|value| is_value(value)) {
                return None;
            }
            return match operator {
                "in" => Self::new(key, Test::In(values)),
                "notin" => Self::new(key, Test::NotIn(values)),
                _ => None,
            };
        }
        if let Some((key, value)) = text.split_once("!=") {
            return is_value(value.trim()).then(|| Self::new(key, Test::NotIn(vec![value.trim().to_owned()])))?;
        }
        if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            return is_value(value.trim()).then(|| Self::new(key, Test::In(vec![value.trim().to_owned()])))?;
        }
        if let Some((key, number)) = text.split_once('>') {
            return Self::new(key, Test::Greater(number.trim().parse().ok()?));
        }
        if let Some((key, number)) = text.split_once('<') {
            return Self::new(key, Test::Less(number.trim().parse().ok()?));
        }
        Self::new(text, Test::Exists)
    }

    fn new(key: &str, test: Test) -> Option<Self> {
        let key = key.trim();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
        (!key.is_empty() && key.chars().all(allowed)).then(|| Self { key: key.to_owned(), test })
    }

    fn holds<'a>(&self, mut values: impl Iterator<Item = &'a String>) -> bool {
        match &self.test {
            Test::Exists => values.next().is_some(),
            Test::Missing => values.next().is_none(),
            Test::In(allowed) => values.any(|value| allowed.contains(value)),
            Test::NotIn(refused) => !values.any(|value| refused.contains(value)),
            Test::Greater(least) => values.any(|value| value.parse::<i64>().is_ok_and(|value| value > *least)),
            Test::Less(most) => values.any(|value| value.parse::<i64>().is_ok_and(|value| value < *most)),
        }
    }
}

/// Cilium's label values are freer than Kubernetes' own; only what would be ambiguous in a selector is refused.
fn is_value(text: &str) -> bool {
    !text.chars().any(|c| c.is_whitespace() || "()=!,<>".contains(c))
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
            ("size>-1", true),
            ("app>1", false),
            ("missing<1", false),
            ("empty in ()", true),
            ("app in ()", false),
            ("missing notin ()", true),
        ];
        for (text, expected) in cases {
            assert_eq!(LabelSelector::parse(text).unwrap().matches(&cart), expected, "{text}");
        }
    }

    #[test]
    fn a_key_without_a_source_matches_any_source() {
        let identity = labels(&[
            ("k8s:app", "cart"),
            ("reserved:host", ""),
            ("k8s:io.kubernetes.pod.namespace", "shop"),
            ("k8s:tier", "web"),
            ("container:tier", "api"),
            ("cidr:10.0.0.0/8", ""),
        ]);
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
            // two sources have the key: one that matches is enough, and one that must not match is one too many
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
    fn other_texts_are_refused() {
        for text in
            [",", "a,", "a in", "a in x", "a in (b", "=b", "!", "a b", "a=b c", "a like (b)", "a=(b)", "a>b", "a>", ">1", "a<1.5", "a=>1"]
        {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
    }
}
