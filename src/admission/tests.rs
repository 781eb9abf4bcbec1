//! Long work of many requests: other clients are served meanwhile, and the work ends with its
//! client.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use futures_util::FutureExt;

use super::*;
use crate::handle::{Allowance, Slice};

/// One row per slice.
const SHORT: Pace = Pace { slice: Allowance::Rows(1), page: Allowance::Rows(1_000) };

fn scans(threads: usize) -> Scans {
    Scans::on_threads(SHORT, threads)
}

fn client(last: u8) -> Client {
    Client::at(IpAddr::from([192, 0, 2, last]))
}

/// Work that needs `left` slices and counts them.
fn slices(left: u64, counter: &Arc<AtomicU64>) -> impl FnMut(&mut Slice) -> ControlFlow<()> + Send + use<> {
    let (mut left, counter) = (left, Arc::clone(counter));
    move |slice| {
        slice.look();
        counter.fetch_add(1, Ordering::Relaxed);
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// With one async thread and one thread for slices, a short request waits for some slices of
/// another client, not for all of its thousands.
#[tokio::test]
async fn a_small_question_is_answered_in_the_midst_of_another_clients_large_ones() {
    let scans = scans(1);
    let (large, small) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let scanners: Vec<Scanner> = (0..20).map(|_| scans.enter(client(1)).unwrap()).collect();
    let mut running = futures_util::future::join_all(scanners.iter().map(|scanner| scanner.run(slices(1_000, &large)))).boxed();
    // each of them waits or runs
    assert!((&mut running).now_or_never().is_none());
    let asked = scans.enter(client(2)).unwrap();
    let before = tokio::select! {
        () = asked.run(slices(3, &small)) => large.load(Ordering::Relaxed),
        _ = &mut running => unreachable!("20,000 slices before 3"),
    };
    assert!(before < 500, "{before} slices of the large ones before 3 of the small one");
    drop(running);
}

#[tokio::test]
async fn work_whose_client_goes_has_no_further_slice() {
    let scans = scans(1);
    let (begun, ended) = (mpsc::sync_channel(1), mpsc::sync_channel::<()>(1));
    let (counter, told, waits) = (Arc::new(AtomicU64::new(0)), begun.0, ended.1);
    let counted = Arc::clone(&counter);
    let scanner = scans.enter(client(1)).unwrap();
    let mut running = Box::pin(scanner.run(move |slice| {
        slice.look();
        counted.fetch_add(1, Ordering::Relaxed);
        // the first slice lasts until its client has disconnected
        told.send(()).ok();
        waits.recv().ok();
        ControlFlow::<()>::Continue(())
    }));
    let queued = scans.enter(client(1)).unwrap();
    let mut waiting = Box::pin(queued.run(slices(5, &counter)));
    assert!((&mut running).now_or_never().is_none() && (&mut waiting).now_or_never().is_none());
    begun.1.recv().unwrap();
    drop((running, waiting));
    drop(ended.0);
    // the next turn starts when that slice has ended
    let next = scans.enter(client(2)).unwrap();
    next.once(|| ()).await;
    assert_eq!((counter.load(Ordering::Relaxed), scans.spent().rows), (1, 2));
    drop((scanner, queued, next));
    assert_eq!(scans.count(), 0);
}

#[tokio::test]
#[should_panic(expected = "of the work")]
async fn work_that_panics_ends_its_request_alone() {
    let scans = scans(1);
    let scanner = scans.enter(client(1)).unwrap();
    let failed = std::panic::AssertUnwindSafe(scanner.once(|| panic!("of the first"))).catch_unwind().await;
    assert!(failed.is_err());
    scanner.once(|| panic!("of the work")).await;
}
