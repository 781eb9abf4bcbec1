//! Checks that `tests/data/client_files.json` equals the output of the program that generates it.
//! The program reads the client files with Cilium's and etcd's own code.

use std::process::Command;

use serde_json::Value;

/// Environment variable with the path of the program. `scripts/nightly` builds the program, because
/// the build takes long.
const READERS: &str = "CLIENT_FILE_READERS";

#[test]
fn the_table_of_client_files_matches_ciliums_reader() {
    let Ok(readers) = std::env::var(READERS) else { return };
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/client_files.json");
    let output = Command::new(readers).arg(table).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [generated, written]: [Vec<Value>; 2] =
        [output.stdout, std::fs::read(table).unwrap()].map(|json| serde_json::from_slice(&json).unwrap());
    for (generated, written) in generated.iter().zip(&written) {
        assert_eq!(generated, written);
    }
    assert_eq!(generated.len(), written.len());
}
