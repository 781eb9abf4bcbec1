//! The table of client files, compared with the output of the program that generates it, which uses
//! Cilium's reader and etcd's.

use std::process::Command;

use serde_json::Value;

/// Environment variable with the path of the program. `scripts/nightly` builds it, because that
/// takes long.
const READERS: &str = "CLIENT_FILE_READERS";

#[test]
fn the_table_of_client_files_is_what_agents_see() {
    let Ok(readers) = std::env::var(READERS) else { return };
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/client_files.json");
    let output = Command::new(readers).arg(table).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [seen, written]: [Vec<Value>; 2] =
        [output.stdout, std::fs::read(table).unwrap()].map(|json| serde_json::from_slice(&json).unwrap());
    for (seen, written) in seen.iter().zip(&written) {
        assert_eq!(seen, written);
    }
    assert_eq!(seen.len(), written.len());
}
