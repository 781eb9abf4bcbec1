//! Lookups at an earlier time.

use serde_json::Value;

use super::objects::{mesh_with_clock_jump, mesh_with_outage};
use super::{at_time, candidates};

#[tokio::test]
async fn a_lookup_at_an_imprecise_time_has_the_candidates() {
    for (fixture, seconds, expected) in [(mesh_with_outage(), 150, [70_001, 70_002]), (mesh_with_clock_jump(), 107, [70_001, 70_003])] {
        let answer = fixture.json(&at_time("/v1/ipcache/lookup?ip=10.1.4.1", seconds)).await;
        assert_eq!((answer["match"]["identity"].as_u64(), candidates(&answer["meta"])), (Some(expected[0]), expected.to_vec()), "{answer}");
        assert_eq!(answer["meta"]["complete"], false);
    }
    let new = mesh_with_outage().json(&at_time("/v1/ipcache/lookup?ip=10.1.9.9", 150)).await;
    assert_eq!((&new["match"], candidates(&new["meta"])), (&Value::Null, vec![70_009]), "{new}");
}
