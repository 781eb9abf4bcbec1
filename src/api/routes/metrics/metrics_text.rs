//! Writer for Prometheus' text format, and for that of OpenMetrics 1.0, which is almost the same.

use std::fmt::{Display, Write};
use std::time::SystemTime;

use crate::instruments::{Exemplar, HISTOGRAM_BOUNDS, HistogramSnapshot};

/// A metric family that is being written.
pub(super) struct MetricFamily<'a> {
    text: &'a mut String,
    name: &'static str,
    is_openmetrics: bool,
    /// True if the sample that is being written has a label.
    has_labels: bool,
}

/// Units that the names of metrics end with.
const UNITS: [&str; 2] = ["seconds", "bytes"];

/// A page of metrics.
pub(super) struct MetricsText {
    text: String,
    is_openmetrics: bool,
}

impl MetricsText {
    pub(super) fn new(is_openmetrics: bool) -> Self {
        Self { text: String::new(), is_openmetrics }
    }

    /// Returns the text. OpenMetrics marks its end, so that a cut text is noticed.
    pub(super) fn finish(mut self) -> String {
        if self.is_openmetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> MetricFamily<'_> {
        // in OpenMetrics, only the samples of a counter have the suffix
        let suffix = if self.is_openmetrics && kind == "counter" { "_total" } else { "" };
        let family = name.strip_suffix(suffix).unwrap_or(name);
        // writing to a String cannot fail
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {kind}");
        if self.is_openmetrics
            && let Some((_, unit)) = family.rsplit_once('_').filter(|(_, unit)| UNITS.contains(unit))
        {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        MetricFamily { text: &mut self.text, name, is_openmetrics: self.is_openmetrics, has_labels: false }
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

    /// Adds all samples of a histogram. In OpenMetrics, buckets have exemplars.
    pub(super) fn times(&mut self, labels: &[(&str, &str)], times: &HistogramSnapshot) {
        let exemplar = |bucket: usize| times.exemplars.get(bucket).and_then(Option::as_ref);
        for (bucket, (bound, count)) in HISTOGRAM_BOUNDS.iter().zip(times.up_to).enumerate() {
            self.begin_sample("_bucket", labels);
            // OpenMetrics requires a decimal point
            if self.is_openmetrics {
                self.add_label("le", format_args!("{bound:?}"))
            } else {
                self.add_label("le", bound)
            }
            self.end_sample(count, exemplar(bucket));
        }
        self.begin_sample("_bucket", labels);
        self.add_label("le", "+Inf");
        self.end_sample(times.count, exemplar(HISTOGRAM_BOUNDS.len()));
        self.write_sample("_sum", labels, times.sum_seconds);
        self.write_sample("_count", labels, times.count);
    }

    fn write_sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.begin_sample(suffix, labels);
        self.end_sample(value, None);
    }

    // a page of 255 clusters has thousands of samples, so that each is written without a String of
    // its own

    fn begin_sample(&mut self, suffix: &str, labels: &[(&str, &str)]) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        self.has_labels = false;
        labels.iter().for_each(|(name, value)| self.add_label(name, value));
    }

    fn add_label(&mut self, name: &str, value: impl Display) {
        self.text.push(if self.has_labels { ',' } else { '{' });
        self.has_labels = true;
        self.text.push_str(name);
        self.text.push_str("=\"");
        let start = self.text.len();
        let _ = write!(self.text, "{value}");
        if self.text[start..].contains(['\\', '"', '\n']) {
            let value = self.text.split_off(start);
            self.text.extend(value.chars().filter(|character| !['\\', '"', '\n'].contains(character)));
        }
        self.text.push('"');
    }

    fn end_sample(&mut self, value: impl Display, exemplar: Option<&Exemplar>) {
        self.text.push_str(if self.has_labels { "} " } else { " " });
        let start = self.text.len();
        let _ = write!(self.text, "{value}");
        // Rust and Prometheus write infinity differently
        if &self.text[start..] == "inf" {
            self.text.truncate(start);
            self.text.push_str("+Inf");
        }
        // Prometheus' own text format has no exemplars
        if let Some(Exemplar { trace, seconds, time }) = exemplar.filter(|_| self.is_openmetrics) {
            let time = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let _ = write!(self.text, " # {{trace_id=\"{}\"}} {seconds} {time:.3}", trace.as_str());
        }
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::instruments::{Histogram, TraceId};

    #[test]
    fn only_openmetrics_has_the_newest_trace_of_each_bucket() {
        let histogram = Histogram::default();
        for (milliseconds, id) in [(40, "a1"), (45, "b2"), (60_000, "c3")] {
            histogram.record(Duration::from_millis(milliseconds));
            histogram.record_exemplar(Duration::from_millis(milliseconds), TraceId::new(id));
        }
        let text = |is_openmetrics| {
            let mut text = MetricsText::new(is_openmetrics);
            text.histogram("meshkeep_x_seconds", "X.").times(&[], &histogram.snapshot());
            text.finish()
        };
        let openmetrics = text(true);
        let exemplars: Vec<&str> = openmetrics.lines().filter(|line| line.contains(" # {")).collect();
        assert_eq!(exemplars.len(), 2, "{openmetrics}");
        assert!(exemplars[0].starts_with(r#"meshkeep_x_seconds_bucket{le="0.05"} 2 # {trace_id="b2"} 0.045 "#), "{openmetrics}");
        assert!(exemplars[1].starts_with(r#"meshkeep_x_seconds_bucket{le="+Inf"} 3 # {trace_id="c3"} 60 "#), "{openmetrics}");
        assert!(!text(false).contains(" # {"));
    }
}
