//! How old an answer is and where it comes from (docs/develop/invariants.md, 10), in a size that does not grow with the mesh.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::problem::Problem;
use crate::dto::meta::{ItemMeta, ListMeta, Source, SourceAge, Sources};
use crate::dto::text::{rfc3339, seconds};
use crate::handle::{Origin, Reading, SourceMeta};
use crate::model::{ClusterName, Position, Record};

/// What is older is told by name (docs/use/api/age-and-caching.md): a source that is live says something at least once a minute, as that is how often its
/// heartbeat is written, and answers questions about its progress in between.
const QUIET_MAX: Duration = Duration::from_secs(60);

/// How many sources a summary names (docs/use/api/age-and-caching.md): 20 of some 200 B are no more than a small answer has anyway.
const SOURCES_NAMED_MAX: usize = 20;

/// How much `meta` says (`meta=`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What all sources have in common, and those that are not as they should be.
    #[default]
    Summary,
    /// Every source.
    Full,
    /// The position alone.
    None,
}

/// On which terms a request takes an answer, and what it wants to hear of its sources.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    max_age: Option<u32>,
    /// Whether clusters that were never read do not count.
    ignores_never_read: bool,
    detail: Detail,
}

impl From<&SourceMeta> for Source {
    fn from(source: &SourceMeta) -> Self {
        Self { cluster: source.cluster.to_string(), kind: source.kind.api_name().into(), age: source.into() }
    }
}

impl From<&SourceMeta> for SourceAge {
    fn from(source: &SourceMeta) -> Self {
        Self {
            origin: origin_name(source.origin).into(),
            phase: source.phase.map(|phase| phase.api_name().into()),
            last_contact: source.last_contact.map(rfc3339),
            last_heartbeat: source.last_heartbeat.map(rfc3339),
            age_seconds: source.age.map(seconds),
            revision: source.revision.map(|revision| revision.0),
            source_age: source.cached.then_some("unknown".into()),
            stale: source.held.then_some(true),
        }
    }
}

impl SourceAge {
    /// The age of an answer that all of some sources gave together; `None` of no sources.
    pub(crate) fn of_all(sources: &[SourceMeta]) -> Option<Self> {
        let age_seconds = sources.iter().filter_map(|source| source.age).max().map(seconds);
        let (phase, last_contact, last_heartbeat, revision, source_age, stale) = (None, None, None, None, None, None);
        Some(Self { origin: origin_of(sources)?, phase, last_contact, last_heartbeat, age_seconds, revision, source_age, stale })
    }
}

impl Terms {
    /// Reads `maxAge=`, `neverRead=` and `meta=`.
    pub(crate) fn read(max_age: Option<u32>, never_read: Option<&str>, detail: Option<&str>) -> Result<Self, Problem> {
        let ignores_never_read = match (never_read, max_age) {
            (None, _) => false,
            (Some("ignore"), Some(_)) => true,
            (Some("ignore"), None) => {
                return Err(Problem::parameter("neverRead", "says what maxAge leaves out: give maxAge=SECONDS with it"));
            }
            (Some(other), _) => return Err(Problem::parameter("neverRead", format!("{other:?} is not known: the only choice is ignore"))),
        };
        let detail = match detail {
            None => Detail::Summary,
            Some("full") => Detail::Full,
            Some("none") => Detail::None,
            Some(other) => return Err(Problem::parameter("meta", format!("{other:?} is neither full nor none"))),
        };
        Ok(Self { max_age, ignores_never_read, detail })
    }

    /// Whether an answer may be refused for its age.
    pub(crate) const fn has_age(self) -> bool {
        self.max_age.is_some()
    }

    /// Whether the answer tells of its sources.
    pub(crate) fn wants_sources(self) -> bool {
        self.detail != Detail::None
    }

    /// Refuses an answer whose oldest source is older than allowed. An age that is not known is too old, and so is what was never read, however
    /// lately its cluster was heard of.
    pub(crate) fn check(self, sources: &[SourceMeta]) -> Result<(), Problem> {
        let Some(max_age) = self.max_age else { return Ok(()) };
        let counted = sources.iter().filter(|source| !(self.ignores_never_read && source.origin == Origin::NeverRead));
        let age_of = |source: &SourceMeta| source.age.filter(|_| source.origin != Origin::NeverRead);
        let oldest = counted.max_by_key(|source| age_of(source).unwrap_or(Duration::MAX));
        let Some(oldest) = oldest.filter(|source| age_of(source).is_none_or(|age| age > Duration::from_secs(u64::from(max_age)))) else {
            return Ok(());
        };
        let (kind, cluster, age) = (oldest.kind, &oldest.cluster, age_of(oldest).map(seconds));
        let detail = match age {
            Some(age) => format!("the {kind} data of cluster {cluster} is {age} s old, maxAge allows {max_age} s: ask later or allow more"),
            None if oldest.origin == Origin::NeverRead => {
                format!("the {kind} data of cluster {cluster} was never read: ask later, or leave such clusters out with neverRead=ignore")
            }
            None => format!("the {kind} data of cluster {cluster} is of unknown age, maxAge allows {max_age} s: ask later or allow more"),
        };
        Err(Problem::too_old(detail, age))
    }
}

impl ListMeta {
    pub(crate) fn new(position: String, sources: &[SourceMeta], terms: Terms) -> Self {
        let origin = origin_of(sources).filter(|_| terms.detail != Detail::None);
        Self { position, origin, sources: Sources::new(sources, terms) }
    }
}

impl Sources {
    fn new(sources: &[SourceMeta], terms: Terms) -> Self {
        if terms.detail == Detail::None || sources.is_empty() {
            return Self::default();
        }
        let is_remarkable = |source: &&SourceMeta| {
            terms.detail == Detail::Full || source.origin != Origin::Live || source.age.is_none_or(|age| age > QUIET_MAX)
        };
        let named_max = if terms.detail == Detail::Full { usize::MAX } else { SOURCES_NAMED_MAX };
        let remarkable = sources.iter().filter(is_remarkable).count();
        let mut is_live: BTreeMap<&ClusterName, bool> = BTreeMap::new();
        for source in sources {
            *is_live.entry(&source.cluster).or_insert(true) &= source.origin == Origin::Live;
        }
        Self {
            oldest_age_seconds: sources.iter().filter_map(|source| source.age).max().map(seconds),
            live_sources: Some(is_live.values().filter(|is_live| **is_live).count()),
            source_count: Some(is_live.len()),
            sources: sources.iter().filter(is_remarkable).take(named_max).map(Source::from).collect(),
            more_sources: Some(remarkable.saturating_sub(named_max)).filter(|more| *more > 0),
        }
    }
}

impl ItemMeta {
    /// Of an answer that no single cluster gave.
    pub(crate) fn nowhere(position: Position, sources: &[SourceMeta], terms: Terms) -> Self {
        Self {
            cluster: None,
            origin: origin_of(sources).filter(|_| terms.detail != Detail::None),
            phase: None,
            last_contact: None,
            last_heartbeat: None,
            age_seconds: None,
            revision: None,
            source_age: None,
            stale: None,
            position: position.to_string(),
            sources: Sources::new(sources, terms),
        }
    }

    /// Of an answer that one source gave, and others had a share in.
    pub(crate) fn of(source: &SourceMeta, position: Position, others: &[SourceMeta], terms: Terms) -> Self {
        let joined = Self::nowhere(position, others, terms);
        if terms.detail == Detail::None {
            return joined;
        }
        let age = SourceAge::from(source);
        Self {
            cluster: Some(source.cluster.to_string()),
            origin: Some(age.origin),
            phase: age.phase,
            last_contact: age.last_contact,
            last_heartbeat: age.last_heartbeat,
            age_seconds: age.age_seconds,
            revision: age.revision,
            source_age: age.source_age,
            stale: age.stale,
            ..joined
        }
    }

    /// Of one record; refused where it is older than the request allows.
    pub(crate) fn of_record(reading: &Reading, record: &Record, terms: Terms) -> Result<Self, Problem> {
        let source = reading.source_of(record);
        terms.check(std::slice::from_ref(&source))?;
        Ok(Self::of(&source, reading.position(), &[], terms))
    }
}

/// The name that the API uses.
pub(crate) const fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::NeverRead => "neverRead",
        Origin::Restored => "restored",
        Origin::Live => "live",
    }
}

fn origin_of(sources: &[SourceMeta]) -> Option<Cow<'static, str>> {
    Origin::of_all(sources.iter().map(|source| source.origin)).map(|origin| origin_name(origin).into())
}
