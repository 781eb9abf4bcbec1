//! Errors in the status of an etcd member: the alarms `NOSPACE` and `CORRUPT`, and a missing
//! leader.

use crate::{Connection, KvstoreError};

/// Maximum number of errors that are returned. etcd has two kinds of alarms for each member, and a
/// missing leader.
const ERRORS_MAX: usize = 8;

/// Maximum characters of an error that is not an alarm. etcd's own texts have fewer than 40.
const ERROR_LENGTH_MAX: usize = 100;

/// Marker of an alarm in an error: `memberID:10501334649042878790 alarm:NOSPACE `.
const ALARM_MARK: &str = "alarm:";

impl Connection {
    /// Returns the errors in the member's status, alarms by their names: `NOSPACE`, `CORRUPT`. etcd
    /// requires no permission to read them.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn etcd_errors(&self) -> Result<Vec<String>, KvstoreError> {
        Ok(named(&self.member_status().await?.errors))
    }
}

fn named(errors: &[String]) -> Vec<String> {
    let name = |error: &String| match error.split_once(ALARM_MARK).and_then(|(_, rest)| rest.split_whitespace().next()) {
        Some(alarm) => alarm.chars().take(ERROR_LENGTH_MAX).collect(),
        None => error.trim().chars().take(ERROR_LENGTH_MAX).collect::<String>(),
    };
    let mut named: Vec<String> = errors.iter().take(ERRORS_MAX).map(name).filter(|name| !name.is_empty()).collect();
    named.sort();
    named.dedup();
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_named_and_other_errors_are_kept() {
        let errors = |texts: &[&str]| named(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(errors(&[]), Vec::<String>::new());
        assert_eq!(
            errors(&["memberID:10501334649042878790 alarm:NOSPACE ", "memberID:1 alarm:NOSPACE ", "memberID:1 alarm:CORRUPT"]),
            ["CORRUPT", "NOSPACE"]
        );
        assert_eq!(errors(&["etcdserver: no leader", " "]), ["etcdserver: no leader"]);
        assert_eq!(errors(&[&"x".repeat(1 << 20)])[0].len(), ERROR_LENGTH_MAX);
        assert_eq!(errors(&["x"; 1_000]).len(), 1);
    }
}
