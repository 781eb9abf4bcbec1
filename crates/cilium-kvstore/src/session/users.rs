//! Users of etcd that authenticate with certificates: a user's name is the certificate's common
//! name (Cilium's `UserEnforcePresence`).

use std::collections::BTreeSet;

use super::Session;
use crate::KvstoreError;

impl Session {
    /// Makes sure that a user exists with exactly these roles. A role that etcd does not have is an
    /// error; the user then exists without it.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn user_enforce_presence(&self, name: &str, roles: &[String]) -> Result<(), KvstoreError> {
        let enforcing = async {
            let connection = self.shared.connection(|| format!("adding user {name:?}")).await?;
            let wanted: BTreeSet<&String> = roles.iter().collect();
            let current_roles = if connection.add_user(name).await? { Vec::new() } else { connection.roles_of(name).await? };
            for surplus in current_roles.iter().filter(|role| !wanted.contains(role)) {
                connection.revoke_role(name, surplus).await?;
            }
            for missing in wanted.into_iter().filter(|role| !current_roles.contains(role)) {
                connection.grant_role(name, missing).await?;
            }
            Ok(())
        };
        self.traced("user_enforce_presence", name.as_bytes(), enforcing).await
    }

    /// Makes sure that a user does not exist.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn user_enforce_absence(&self, name: &str) -> Result<(), KvstoreError> {
        let enforcing = async {
            let connection = self.shared.connection(|| format!("deleting user {name:?}")).await?;
            connection.delete_user(name).await.map(drop)
        };
        self.traced("user_enforce_absence", name.as_bytes(), enforcing).await
    }
}
