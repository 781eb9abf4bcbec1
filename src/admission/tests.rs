//! Tests of long requests: they do not block other clients, and end when their client disconnects.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use futures_util::FutureExt;

use super::*;
use crate::handle::{SliceLimit, WorkSlice};

/// One row per slice.
const ONE_ROW_SLICES: ScanLimits = ScanLimits { slice: SliceLimit::Rows(1), page: SliceLimit::Rows(1_000) };

fn scans(threads: usize) -> ScanExecutor {
    ScanExecutor::with_threads(ONE_ROW_SLICES, threads)
}

fn client(last: u8) -> Client {
    Client::from_ip(IpAddr::from([192, 0, 2, last]))
}

/// Work that needs `left` slices and counts them.
fn slices(left: u64, counter: &Arc<AtomicU64>) -> impl FnMut(&mut WorkSlice) -> ControlFlow<()> + Send + use<> {
    let (mut left, counter) = (left, Arc::clone(counter));
    move |slice| {
        slice.count_row();
        counter.fetch_add(1, Ordering::Relaxed);
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// With one async thread and one thread for slices, a short request waits for some slices of
/// another client, not for all of its thousands.
#[tokio::test]
async fn a_short_request_does_not_wait_for_all_slices_of_another_client() {
    let scans = scans(1);
    let (large, small) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let scanners: Vec<Scanner> = (0..20).map(|_| scans.admit(client(1)).unwrap()).collect();
    let mut running = futures_util::future::join_all(scanners.iter().map(|scanner| scanner.run(slices(1_000, &large)))).boxed();
    // each of them waits or runs
    assert!((&mut running).now_or_never().is_none());
    let short = scans.admit(client(2)).unwrap();
    let before = tokio::select! {
        () = short.run(slices(3, &small)) => large.load(Ordering::Relaxed),
        _ = &mut running => unreachable!("20,000 slices before 3"),
    };
    assert!(before < 500, "{before} slices of the large ones before 3 of the small one");
    drop(running);
}

#[tokio::test]
async fn work_of_a_disconnected_client_gets_no_further_slice() {
    let scans = scans(1);
    let (started, ended) = (mpsc::sync_channel(1), mpsc::sync_channel::<()>(1));
    let (counter, started_sender, end_receiver) = (Arc::new(AtomicU64::new(0)), started.0, ended.1);
    let counted = Arc::clone(&counter);
    let scanner = scans.admit(client(1)).unwrap();
    let mut running = Box::pin(scanner.run(move |slice| {
        slice.count_row();
        counted.fetch_add(1, Ordering::Relaxed);
        // the first slice lasts until its client has disconnected
        started_sender.send(()).ok();
        end_receiver.recv().ok();
        ControlFlow::<()>::Continue(())
    }));
    let queued = scans.admit(client(1)).unwrap();
    let mut waiting = Box::pin(queued.run(slices(5, &counter)));
    assert!((&mut running).now_or_never().is_none() && (&mut waiting).now_or_never().is_none());
    started.1.recv().unwrap();
    drop((running, waiting));
    drop(ended.0);
    // the next slice starts when that one has ended
    let next = scans.admit(client(2)).unwrap();
    next.run_once(|| ()).await;
    assert_eq!((counter.load(Ordering::Relaxed), scans.total_usage().rows), (1, 2));
    drop((scanner, queued, next));
    assert_eq!(scans.admitted_count(), 0);
}

#[tokio::test]
#[should_panic(expected = "second panic")]
async fn a_panic_ends_only_the_request_that_caused_it() {
    let scans = scans(1);
    let scanner = scans.admit(client(1)).unwrap();
    let failed = std::panic::AssertUnwindSafe(scanner.run_once(|| panic!("first panic"))).catch_unwind().await;
    assert!(failed.is_err());
    scanner.run_once(|| panic!("second panic")).await;
}
