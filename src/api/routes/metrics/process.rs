//! Metrics of the process, with the names of Prometheus' client libraries, read from `/proc`
//! (proc(5)).

use std::fs;

use super::metrics_text::MetricsText;

/// Ticks per second in `/proc/self/stat`: the kernel's `USER_HZ`, which is 100 on all supported
/// platforms.
const TICKS_PER_SECOND: f64 = 100.0;

/// Indices of fields of `/proc/self/stat`, counted after the name in parentheses, which may contain
/// spaces.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const THREADS: usize = 17;
const START: usize = 19;

/// Adds the metrics that can be read.
pub(super) fn add(text: &mut MetricsText) {
    let stat = read("/proc/self/stat");
    let fields: Vec<&str> = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok());
    let seconds = |ticks: f64| ticks / TICKS_PER_SECOND;
    let cpu = ticks(USER_TIME).zip(ticks(SYSTEM_TIME)).map(|(user, system)| seconds(user + system));
    let mut total = text.counter("process_cpu_seconds_total", "Processor time of all threads.");
    cpu.into_iter().for_each(|cpu| total.sample(&[], cpu));
    let booted = number_after(&read("/proc/stat"), "btime");
    let status = read("/proc/self/status");
    let bytes = |name| number_after(&status, name).map(|kibibytes| kibibytes * 1024.0);
    let open = fs::read_dir("/proc/self/fd").ok().map(|entries| u32::try_from(entries.count()).unwrap_or(u32::MAX)).map(f64::from);
    for (name, help, value) in [
        ("process_start_time_seconds", "Time of the start.", booted.zip(ticks(START)).map(|(booted, start)| booted + seconds(start))),
        ("process_threads", "Threads.", ticks(THREADS)),
        ("process_resident_memory_bytes", "Resident memory.", bytes("VmRSS:")),
        ("process_virtual_memory_bytes", "Virtual memory.", bytes("VmSize:")),
        ("process_open_fds", "Open file descriptors.", open),
        ("process_max_fds", "Maximum number of file descriptors.", number_after(&read("/proc/self/limits"), "Max open files")),
    ] {
        let mut gauge = text.gauge(name, help);
        value.into_iter().for_each(|value| gauge.sample(&[], value));
    }
}

/// Reads a file. Returns an empty text if that fails; the metrics from this file are then left out.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the first number after a name at the start of a line.
fn number_after(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}
