//! Source and age of an answer (docs/develop/invariants.md, 10), in a size that does not grow with
//! the mesh.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::api::problem::Problem;
use crate::dto::meta::{ItemMeta, ListMeta, PastMeta, Source, SourceAge, Sources, UnknownPeriod};
use crate::dto::text::{rfc3339, seconds};
use crate::dto::values;
use crate::dto::values::NeverRead;
use crate::dto::values::closed::{MetaDetail, Origin, UnknownAge};
use crate::handle::{HistoryGap, PastMirror, Reading, SourceMeta};
use crate::model::{ClusterName, EntryKey, Kind, Position, Record, Scope};

/// Age from which on a summary names a source (docs/use/api/age-and-caching.md). meshkeep hears
/// from a live source at least once a minute: the source's heartbeat is written once a minute, and
/// the source answers progress requests in between.
const OLD_SOURCE_AGE: Duration = Duration::from_secs(60);

/// Maximum number of periods in the `meta` of an answer about an earlier time.
pub(crate) const GAPS_MAX: usize = 20;

/// Maximum number of sources in a summary (docs/use/api/age-and-caching.md). 20 sources of about
/// 200 B each are no larger than a small answer.
const LISTED_SOURCES_MAX: usize = 20;

/// Conditions of a request on the age of its answer, and the level of detail of `meta`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MetaOptions {
    max_age: Option<u32>,
    /// Set if clusters that were never read are ignored.
    ignores_never_read: bool,
    /// `None`: a summary of all sources, and an item for each source that is not live or is old.
    detail: Option<MetaDetail>,
}

impl From<&SourceMeta> for Source {
    fn from(source: &SourceMeta) -> Self {
        Self { cluster: source.cluster.to_string(), kind: source.kind.into(), age: source.into() }
    }
}

impl From<&SourceMeta> for SourceAge {
    fn from(source: &SourceMeta) -> Self {
        Self {
            origin: source.origin.into(),
            phase: source.phase.map(Into::into),
            last_contact: source.last_contact.map(rfc3339),
            last_heartbeat: source.last_heartbeat.map(rfc3339),
            age_seconds: source.age.map(seconds),
            revision: source.revision.map(|revision| revision.0),
            source_age: source.cached.then_some(UnknownAge::Unknown.into()),
            stale: source.held.then_some(true),
        }
    }
}

/// Sources of the records in one answer, and their ages. Most of a source is the same for all
/// records of its cluster and kind, and is computed when the first of them is added to the answer.
#[derive(Debug, Default)]
pub(crate) struct SourceCache(HashMap<Scope, (SourceMeta, SourceAge)>);

impl SourceCache {
    /// Returns source and age of one kind of a cluster.
    pub(crate) fn source(&mut self, reading: &Reading, scope: Scope) -> &(SourceMeta, SourceAge) {
        self.0.entry(scope).or_insert_with_key(|scope| {
            let source = reading.source(&scope.cluster, scope.kind);
            let age = SourceAge::from(&source);
            (source, age)
        })
    }

    /// Returns source and age of one record.
    pub(crate) fn source_of(&mut self, reading: &Reading, record: &Record) -> (SourceMeta, SourceAge) {
        let EntryKey { cluster, kind, .. } = record.key.origin();
        let (source, age) = self.source(reading, Scope { cluster, kind });
        let source = reading.source_with(record, source.clone());
        let (revision, stale) = (source.revision.map(|revision| revision.0), source.held.then_some(true));
        let age = SourceAge { origin: source.origin.into(), revision, stale, ..age.clone() };
        (source, age)
    }
}

impl SourceAge {
    /// Returns the age of an answer from several sources: the oldest. `None` without sources.
    pub(crate) fn oldest(sources: &[SourceMeta]) -> Option<Self> {
        let age_seconds = sources.iter().filter_map(|source| source.age).max().map(seconds);
        let (phase, last_contact, last_heartbeat, revision, source_age, stale) = (None, None, None, None, None, None);
        Some(Self { origin: combined_origin(sources)?, phase, last_contact, last_heartbeat, age_seconds, revision, source_age, stale })
    }
}

impl MetaOptions {
    /// Parses `maxAge=`, `neverRead=` and `meta=`.
    pub(crate) fn parse(max_age: Option<u32>, never_read: Option<NeverRead>, detail: Option<values::MetaDetail>) -> Result<Self, Problem> {
        if let Some(NeverRead::Unknown(other)) = never_read {
            return Err(Problem::bad_parameter("neverRead", format!("{other:?} is not supported: the only value is ignore")));
        }
        if never_read.is_some() && max_age.is_none() {
            return Err(Problem::bad_parameter("neverRead", "only works together with maxAge: add maxAge=SECONDS"));
        }
        let unknown = |other| Problem::bad_parameter("meta", format!("{other:?} is not supported: use full or none"));
        let detail = detail.map(|detail| detail.into_known().map_err(unknown)).transpose()?;
        Ok(Self { max_age, ignores_never_read: never_read.is_some(), detail })
    }

    /// Returns whether an answer can be refused because of its age.
    pub(crate) const fn has_age(self) -> bool {
        self.max_age.is_some()
    }

    /// Returns whether the answer includes its sources.
    pub(crate) fn wants_sources(self) -> bool {
        self.detail != Some(MetaDetail::None)
    }

    /// Refuses an answer from these kinds of the clusters that `is_wanted` accepts, if the oldest
    /// of them is older than allowed.
    pub(crate) fn check_clusters(self, reading: &Reading, kinds: &[Kind], is_wanted: impl Fn(&ClusterName) -> bool) -> Result<(), Problem> {
        if !self.has_age() {
            return Ok(());
        }
        let summary = reading.summary();
        let wanted = summary.clusters.iter().filter(|cluster| is_wanted(&cluster.name));
        let sources: Vec<SourceMeta> = wanted.flat_map(|cluster| kinds.iter().map(|kind| reading.source(&cluster.name, *kind))).collect();
        self.check(&sources)
    }

    /// Refuses an answer whose oldest source is older than allowed.
    ///
    /// An unknown age counts as too old. So does a kind that was never read, even if its cluster
    /// was contacted recently.
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
            Some(age) => {
                format!("the {kind} data of cluster {cluster} is {age} s old, maxAge allows {max_age} s: try again later, or raise maxAge")
            }
            None if oldest.origin == Origin::NeverRead => {
                format!("the {kind} data of cluster {cluster} was never read: try again later, or omit such clusters with neverRead=ignore")
            }
            None => format!("the {kind} data of cluster {cluster} is of unknown age, maxAge allows {max_age} s: omit maxAge to accept it"),
        };
        Err(Problem::too_old(detail, age))
    }
}

impl ListMeta {
    /// Returns the `meta` of a list of these kinds of the clusters that `is_wanted` accepts.
    ///
    /// # Errors
    /// Returns a problem if the data is older than the request allows.
    pub(crate) fn of_clusters(
        reading: &Reading,
        position: String,
        kinds: &[Kind],
        is_wanted: impl Fn(&ClusterName) -> bool,
        meta_options: MetaOptions,
    ) -> Result<Self, Problem> {
        meta_options.check_clusters(reading, kinds, &is_wanted)?;
        let (origin, sources) = Sources::of_clusters(reading, kinds, is_wanted, meta_options);
        Ok(Self { origin, sources, ..Self::new(position, &[], meta_options) })
    }

    /// Returns the `meta` of a list at an earlier time, before the history since then is read.
    pub(crate) fn of_past(mirror: &PastMirror, position: String, kinds: &[Kind], clusters: &[ClusterName]) -> Self {
        let not_observed = mirror.not_observed(kinds, clusters);
        let is_complete = not_observed.is_empty() && mirror.at.latest == mirror.at.sequence;
        Self { past: PastMeta::new(mirror.time, is_complete, &not_observed), ..Self::new(position, &[], MetaOptions::default()) }
    }

    /// Adds periods whose changes are lost.
    pub(crate) fn add_lost_periods(&mut self, lost: &[HistoryGap]) {
        if !lost.is_empty() {
            let PastMeta { complete, gaps, .. } = &mut self.past;
            *complete = Some(false);
            let free = GAPS_MAX.saturating_sub(gaps.len());
            gaps.extend(lost.iter().take(free).map(UnknownPeriod::from));
        }
    }

    pub(crate) fn new(position: String, sources: &[SourceMeta], meta_options: MetaOptions) -> Self {
        let origin = combined_origin(sources).filter(|_| meta_options.detail != Some(MetaDetail::None));
        Self { position, origin, past: PastMeta::default(), sources: Sources::new(sources, meta_options) }
    }
}

impl Sources {
    /// Returns the combined origin and the summary of these kinds of the clusters that `is_wanted`
    /// accepts. Equals [`Sources::new`] of all of these sources, but builds only those that the
    /// answer names.
    pub(crate) fn of_clusters(
        reading: &Reading,
        kinds: &[Kind],
        is_wanted: impl Fn(&ClusterName) -> bool,
        meta_options: MetaOptions,
    ) -> (Option<values::Origin>, Self) {
        if meta_options.detail == Some(MetaDetail::None) {
            return (None, Self::default());
        }
        let is_full = meta_options.detail == Some(MetaDetail::Full);
        let named_max = if is_full { usize::MAX } else { LISTED_SOURCES_MAX };
        let (mut origin, mut oldest, mut live_count, mut count, mut remarkable_count) = (None, None, 0, 0, 0_usize);
        let mut named = Vec::new();
        let summary = reading.summary();
        for cluster in summary.clusters.iter().filter(|cluster| is_wanted(&cluster.name)) {
            let (age, origins) = (reading.age_of(cluster), || kinds.iter().map(|kind| (*kind, cluster.origins[kind.index()])));
            origin = Origin::combine(origin.into_iter().chain(origins().map(|(_, origin)| origin)));
            oldest = oldest.max(age);
            count += 1;
            live_count += usize::from(origins().all(|(_, origin)| origin == Origin::Live));
            let is_old = age.is_none_or(|age| age > OLD_SOURCE_AGE);
            for (kind, _) in origins().filter(|(_, origin)| is_full || is_old || *origin != Origin::Live) {
                remarkable_count += 1;
                if named.len() < named_max {
                    named.push(Source::from(&reading.source(&cluster.name, kind)));
                }
            }
        }
        if count == 0 {
            return (None, Self::default());
        }
        let sources = Self {
            oldest_age_seconds: oldest.map(seconds),
            live_sources: Some(live_count),
            source_count: Some(count),
            sources: named,
            more_sources: Some(remarkable_count.saturating_sub(named_max)).filter(|more| *more > 0),
        };
        (origin.map(Into::into), sources)
    }

    fn new(sources: &[SourceMeta], meta_options: MetaOptions) -> Self {
        if meta_options.detail == Some(MetaDetail::None) || sources.is_empty() {
            return Self::default();
        }
        let is_remarkable = |source: &&SourceMeta| {
            meta_options.detail == Some(MetaDetail::Full)
                || source.origin != Origin::Live
                || source.age.is_none_or(|age| age > OLD_SOURCE_AGE)
        };
        let named_max = if meta_options.detail == Some(MetaDetail::Full) { usize::MAX } else { LISTED_SOURCES_MAX };
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
    /// Returns the `meta` of an answer that does not come from a single cluster.
    pub(crate) fn without_source(position: Position, sources: &[SourceMeta], meta_options: MetaOptions) -> Self {
        Self {
            cluster: None,
            origin: combined_origin(sources).filter(|_| meta_options.detail != Some(MetaDetail::None)),
            phase: None,
            last_contact: None,
            last_heartbeat: None,
            age_seconds: None,
            revision: None,
            source_age: None,
            stale: None,
            position: position.to_string(),
            past: PastMeta::default(),
            sources: Sources::new(sources, meta_options),
        }
    }

    /// Returns the `meta` of an answer that used these kinds of all clusters, because nothing
    /// matched.
    ///
    /// # Errors
    /// Returns a problem if the data is older than the request allows.
    pub(crate) fn of_all_clusters(reading: &Reading, kinds: &[Kind], meta_options: MetaOptions) -> Result<Self, Problem> {
        meta_options.check_clusters(reading, kinds, |_| true)?;
        let (origin, sources) = Sources::of_clusters(reading, kinds, |_| true, meta_options);
        Ok(Self { origin, sources, ..Self::without_source(reading.position(), &[], meta_options) })
    }

    /// Returns the `meta` of an answer whose age is that of `source`. Its summary covers `others`,
    /// the sources that the answer used.
    pub(crate) fn from_source(source: &SourceMeta, position: Position, others: &[SourceMeta], meta_options: MetaOptions) -> Self {
        let joined = Self::without_source(position, others, meta_options);
        if meta_options.detail == Some(MetaDetail::None) {
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

    /// Returns the `meta` of one record.
    ///
    /// # Errors
    /// Returns a problem if the record is older than the request allows.
    pub(crate) fn from_record(reading: &Reading, record: &Record, meta_options: MetaOptions) -> Result<Self, Problem> {
        let source = reading.source_of(record);
        meta_options.check(std::slice::from_ref(&source))?;
        Ok(Self::from_source(&source, reading.position(), &[], meta_options))
    }
}

fn combined_origin(sources: &[SourceMeta]) -> Option<values::Origin> {
    Origin::combine(sources.iter().map(|source| source.origin)).map(Into::into)
}
