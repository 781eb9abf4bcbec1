//! Writer for Prometheus' text format.

use std::fmt::{Display, Write};

use crate::instruments::{HISTOGRAM_BOUNDS, HistogramSnapshot};

/// A metric family that is being written.
pub(super) struct MetricFamily<'a> {
    text: &'a mut String,
    name: &'static str,
}

/// A page of metrics.
#[derive(Default)]
pub(super) struct MetricsText {
    pub(super) text: String,
}

impl MetricsText {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> MetricFamily<'_> {
        // writing to a String cannot fail
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        MetricFamily { text: &mut self.text, name }
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &str) -> MetricFamily<'_> {
        self.family(name, "gauge", help)
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &str) -> MetricFamily<'_> {
        self.family(name, "counter", help)
    }

    pub(super) fn histogram(&mut self, name: &'static str, help: &str) -> MetricFamily<'_> {
        self.family(name, "histogram", help)
    }
}

impl MetricFamily<'_> {
    /// Adds one sample. Label values are names or versions that need no escaping. Characters that
    /// would need it are removed.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.write_sample("", labels, value);
    }

    /// Adds all samples of a histogram.
    pub(super) fn times(&mut self, labels: &[(&str, &str)], times: &HistogramSnapshot) {
        for (bound, count) in HISTOGRAM_BOUNDS.iter().zip(times.up_to) {
            let bound = bound.to_string();
            self.write_sample("_bucket", &[labels, &[("le", &bound)]].concat(), count);
        }
        self.write_sample("_bucket", &[labels, &[("le", "+Inf")]].concat(), times.count);
        self.write_sample("_sum", labels, times.sum_seconds);
        self.write_sample("_count", labels, times.count);
    }

    fn write_sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", value.replace(['\\', '"', '\n'], ""))).collect();
        let braced = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let value = value.to_string();
        // Rust and Prometheus write infinity differently
        let value = if value == "inf" { "+Inf" } else { &value };
        let _ = writeln!(self.text, "{}{suffix}{braced} {value}", self.name);
    }
}
