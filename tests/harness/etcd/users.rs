//! Users and roles as Cilium's clustermesh-apiserver creates them.

use etcd_client::{Permission, UserAddOptions};

use super::Etcd;

/// Returns the permissions of the role `remote` in the etcd of a cluster
/// (`clustermesh-apiserver/etcdinit`).
pub(super) fn remote_permissions(cluster: &str) -> [Permission; 4] {
    [
        Permission::read("cilium/.heartbeat").with_prefix(),
        Permission::read("cilium/state/").with_prefix(),
        Permission::read(format!("cilium/cluster-config/{cluster}")),
        Permission::read(format!("cilium/synced/{cluster}/")).with_prefix(),
    ]
}

/// Returns the permissions of the role `local`, which reads the copies that a KVStoreMesh writes.
fn local_permissions() -> [Permission; 4] {
    ["cilium/.heartbeat", "cilium/cache/", "cilium/cluster-config/", "cilium/synced/"].map(|prefix| Permission::read(prefix).with_prefix())
}

impl Etcd {
    /// Enables authentication with the users `remote` and `local-<cluster>` and their roles. They
    /// have no password and log in by the common name of their certificate, so the etcd must
    /// require client certificates. The user `meshkeep`, whose certificate the harness itself uses,
    /// gets the role `root`.
    pub(crate) async fn enable_cilium_users(&self, cluster: &str) {
        let mut client = self.client().await;
        for role in ["root", "remote", "local"] {
            client.role_add(role).await.unwrap();
        }
        let permissions = remote_permissions(cluster).map(|permission| ("remote", permission));
        for (role, permission) in permissions.into_iter().chain(local_permissions().map(|permission| ("local", permission))) {
            client.role_grant_permission(role, permission).await.unwrap();
        }
        let local = format!("local-{cluster}");
        for (user, role) in [("root", "root"), ("meshkeep", "root"), ("remote", "remote"), (local.as_str(), "local")] {
            client.user_add(user, "", Some(UserAddOptions::new().with_no_pwd())).await.unwrap();
            client.user_grant_role(user, role).await.unwrap();
        }
        client.auth_enable().await.unwrap();
    }

    /// Returns the client file of a user, with a certificate that has this common name.
    pub(crate) fn client_file_of(&self, user: &str) -> String {
        self.authority().client(user);
        self.client_file_yaml().replace("client-meshkeep", &format!("client-{user}"))
    }
}
