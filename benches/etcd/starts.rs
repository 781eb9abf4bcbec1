//! Measures starts: the time until a process that has all keys on disk answers a read of one key.

use std::time::{Duration, Instant};

use etcd_client::Client;

use super::{Contender, Contenders, Program, SERVE, median, report, rounds};
use crate::processes::{Outcome, Ports, RunningProcess, spawn_etcd, start_meshkeep_with};

/// Maximum time of a start.
const START_TIME_MAX: Duration = Duration::from_secs(120);

/// Pause between two requests.
const POLL: Duration = Duration::from_millis(1);

/// Stops and starts each contender several times, in turn.
pub(crate) async fn measure(all: &mut Contenders, key: &[u8]) -> Outcome<()> {
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds() {
        for (index, contender) in all.iter_mut().enumerate() {
            contender.running.take().ok_or("it does not run")?.terminate()?;
            times[index].push(time_start(contender, key).await?.as_secs_f64() * 1_000.0);
        }
    }
    report("from exec to the first answer for a key, ms", &times.map(median), false);
    Ok(())
}

async fn time_start(contender: &mut Contender, key: &[u8]) -> Outcome<Duration> {
    let began = Instant::now();
    let (running, url): (RunningProcess, String) = match &contender.program {
        Program::Etcd(binary) => spawn_etcd(binary, &contender.home, &Ports::free()?)?,
        Program::Meshkeep => {
            let (running, _, url) = start_meshkeep_with(&contender.home, &SERVE)?;
            (running, url.ok_or("it does not serve an etcd")?)
        }
    };
    contender.running = Some(running);
    loop {
        if let Ok(mut client) = Client::connect([&url], None).await
            && let Ok(answer) = client.get(key, None).await
            && answer.kvs().len() == 1
        {
            return Ok(began.elapsed());
        }
        if began.elapsed() > START_TIME_MAX {
            return Err(format!("{} does not answer", contender.name).into());
        }
        tokio::time::sleep(POLL).await;
    }
}
