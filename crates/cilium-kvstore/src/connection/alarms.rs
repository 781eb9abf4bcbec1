//! Errors in the status of an etcd member: the alarms `NOSPACE` and `CORRUPT`, and a missing
//! leader.

use crate::{Connection, KvstoreError};

/// Maximum number of errors that are read; equal names are merged afterwards. Each member can have
/// two kinds of alarms, and one error reports a missing leader.
const ERRORS_MAX: usize = 8;

/// Maximum characters of an error that is not an alarm. etcd's own texts have fewer than 40.
const ERROR_LENGTH_MAX: usize = 100;

/// Marker of an alarm in an error: `memberID:10501334649042878790 alarm:NOSPACE `.
const ALARM_MARK: &str = "alarm:";

impl Connection {
    /// Returns the errors in the member's status. Alarms are shortened to their names: `NOSPACE`,
    /// `CORRUPT`. Reading them requires no etcd permission.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn etcd_errors(&self) -> Result<Vec<String>, KvstoreError> {
        Ok(error_names(&self.member_status().await?.errors))
    }
}

fn error_names(errors: &[String]) -> Vec<String> {
    let name = |error: &String| match error.split_once(ALARM_MARK).and_then(|(_, rest)| rest.split_whitespace().next()) {
        Some(alarm) => alarm.chars().take(ERROR_LENGTH_MAX).collect(),
        None => error.trim().chars().take(ERROR_LENGTH_MAX).collect::<String>(),
    };
    let mut names: Vec<String> = errors.iter().take(ERRORS_MAX).map(name).filter(|name| !name.is_empty()).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_shortened_and_other_errors_stay_as_they_are() {
        let errors = |texts: &[&str]| error_names(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
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
