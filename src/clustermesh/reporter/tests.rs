//! Which changes of a cluster's status are logged and announced.

use super::*;
use crate::model::{ClusterConfig, MissingConfig, Revision};

#[test]
fn each_phase_is_logged_once_until_the_cluster_is_read_again() {
    use Phase::{BackingOff, Connecting, Listing, Live, SourceLost};
    let (reporter, _status) = Reporter::new(ClusterName::parse("paris").unwrap());
    let phases = [Connecting, BackingOff, Connecting, BackingOff, Connecting, Listing, Live, SourceLost, Live, BackingOff, Connecting];
    let is_new = phases.map(|phase| reporter.logged().record_phase(phase));
    assert_eq!(is_new, [true, true, false, false, false, true, true, true, true, true, true]);
}

#[test]
fn an_unreachable_cluster_is_announced_once_per_error() {
    let (reporter, status) = Reporter::new(ClusterName::parse("out-of-reach").unwrap());
    let mut announced = None;
    let mut count_due = || {
        let due = phase_to_announce(announced, &status.borrow());
        announced = due.or(announced);
        usize::from(due.is_some())
    };
    assert_eq!(count_due(), 1);
    let mut counts = Vec::new();
    for error in ["refused", "refused", "refused", "no route", "no route"] {
        reporter.enter_phase(Phase::Connecting);
        let retried = count_due();
        reporter.record_failure(error, Duration::from_millis(1));
        counts.push((retried, count_due()));
    }
    assert_eq!(counts, [(0, 1), (0, 0), (0, 0), (0, 1), (0, 0)]);
    reporter.enter_phase(Phase::Connecting);
    reporter.enter_phase(Phase::ReadingConfig);
    assert_eq!((count_due(), announced.map(|(phase, _)| phase)), (1, Some(Phase::ReadingConfig)));
}

#[tokio::test]
async fn the_time_in_a_phase_starts_with_the_announced_phase() {
    let (reporter, status) = Reporter::new(ClusterName::parse("tried-again").unwrap());
    let (commands, _queue) = crate::commit::command_queue();
    let mut publisher = tokio::task::JoinSet::new();
    publisher.spawn(reporter.clone().publish_phases(commands));
    let since = async || {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        status.borrow().phase_since
    };
    reporter.record_failure("refused", Duration::from_millis(1));
    let started = since().await;
    for _ in 0..3 {
        reporter.enter_phase(Phase::Connecting);
        assert_eq!(since().await, started);
        reporter.record_failure("refused", Duration::from_millis(1));
        assert_eq!(since().await, started);
    }
    reporter.enter_phase(Phase::ReadingConfig);
    assert!(since().await > started);
}

#[test]
fn the_reason_names_the_awaited_canaries_and_their_kinds() {
    let (reporter, status) = Reporter::new(ClusterName::parse("paris").unwrap());
    let reason = || status.borrow().last_error.clone();
    reporter.change_status(|status| status.config = Some(ClusterConfig { cached: true, ..ClusterConfig::default() }));
    reporter.set_kind_state(Kind::Ip, false, true);
    reporter.set_kind_state(Kind::Service, false, true);
    assert_eq!(status.borrow().phase, Phase::WaitingForCanary);
    let both = reason().unwrap();
    for part in ["cilium/synced/paris/cilium/cache/ip/v1 (ipcache)", "cilium/synced/paris/cilium/cache/services/v1 (service)"] {
        assert!(both.contains(part), "{both}");
    }
    reporter.set_kind_state(Kind::Ip, false, false);
    reporter.change_status(|status| status.config = None);
    reporter.set_kind_state(Kind::Identity, true, false);
    let one = "waiting for the canary cilium/synced/paris/cilium/state/services/v1 (service): the writer has not finished its first sync";
    assert_eq!(reason().as_deref(), Some(one));
    reporter.set_kind_state(Kind::Service, false, false);
    assert_eq!((status.borrow().phase, reason()), (Phase::Listing, None));
}

#[test]
fn a_reconnect_keeps_the_phase_of_a_cluster_without_a_config() {
    let (reporter, status) = Reporter::new(ClusterName::parse("rome").unwrap());
    let missing = MissingConfig { others: vec![ClusterName::parse("paris").unwrap()], ..MissingConfig::default() };
    reporter.enter_phase(Phase::ReadingConfig);
    reporter.set_missing_config(missing.clone());
    let since = status.borrow().missing_config.as_ref().unwrap().since;
    assert_eq!(status.borrow().last_error.as_deref(), Some("this etcd belongs to cluster paris, not rome"));
    reporter.enter_connecting();
    assert_eq!(status.borrow().phase, Phase::ReadingConfig);
    reporter.set_missing_config(missing);
    assert_eq!(status.borrow().missing_config.as_ref().unwrap().since, since);
    reporter.record_failure("no heartbeat", Duration::from_millis(1));
    assert!(status.borrow().missing_config.is_some(), "a failure does not show which cluster the etcd belongs to");
    reporter.forget_missing_config();
    reporter.enter_connecting();
    assert_eq!((status.borrow().phase, status.borrow().missing_config.is_none()), (Phase::Connecting, true));
}

#[test]
fn an_alternating_source_logs_each_phase_once_a_minute() {
    let (reporter, _status) = Reporter::new(ClusterName::parse("back-and-forth").unwrap());
    let lines = (0..2_000).flat_map(|_| [Phase::Live, Phase::SourceLost]).filter_map(|phase| reporter.due_phase_log(phase));
    assert_eq!(lines.collect::<Vec<_>>(), [LogPermit { more: None }; 2]);
}

/// The task that publishes phases waits for changes of the status.
#[test]
fn events_of_a_watch_change_the_status_and_wake_nobody() {
    let (reporter, status) = Reporter::new(ClusterName::parse("paris").unwrap());
    reporter.change_resource(Kind::Ip, |resource| resource.revision = Some(Revision(7)));
    reporter.record_contact();
    reporter.set_kind_state(Kind::Ip, false, false);
    let revision = status.borrow().resources.iter().find_map(|resource| resource.revision);
    assert_eq!((status.has_changed().unwrap(), revision), (false, Some(Revision(7))));
    reporter.set_kind_state(Kind::Ip, true, false);
    assert!(status.has_changed().unwrap());
}
