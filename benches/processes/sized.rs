//! How much a bench measures: all of it, or as little as shows that it still works.

/// The full size, or the small one where `MESHKEEP_BENCH_SMALL` is set, as CI does so that benches do not rot.
pub(crate) fn sized<T>(full: T, small: T) -> T {
    if std::env::var_os("MESHKEEP_BENCH_SMALL").is_some() { small } else { full }
}
