//! Size of a bench: full, or just enough to show that it still works.

/// Returns the full size, or the small one if `MESHKEEP_BENCH_SMALL` is set. CI sets it so that
/// benches keep working.
pub(crate) fn sized<T>(full: T, small: T) -> T {
    if std::env::var_os("MESHKEEP_BENCH_SMALL").is_some() { small } else { full }
}
