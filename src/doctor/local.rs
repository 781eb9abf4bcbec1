//! Checks of this machine: the directory of client files, the data directory, and certificate
//! files.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{Access, access};

use super::{Check, DoctorOptions};
use crate::clustermesh::{ClusterFileContents, read_cluster_files};
use crate::model::{ClusterName, EtcdClusterId};
use crate::store::{StoreError, inspect};
use cilium_kvstore::{CertificateFacts, EtcdConfig, TlsRefusal};

/// Certificates that expire within this many days cause a warning. `cilium-cli` and cert-manager
/// renew a month ahead too.
const EXPIRY_WARNING_DAYS: i64 = 30;

/// Advice for a client file that cannot be used.
pub(super) const FILE_ADVICE: &str = "correct or remove the file: it must be an etcd client file, as in the Secret cilium-clustermesh";

/// Result of the local checks.
#[derive(Debug)]
pub(super) struct LocalChecks {
    pub(super) checks: Vec<Check>,
    /// Cluster files by name: content, or the reason why the file cannot be used.
    pub(super) files: ClusterFileContents,
    /// Id of the etcd that each cluster was last read from, according to the store.
    pub(super) stored_etcd_ids: BTreeMap<ClusterName, EtcdClusterId>,
}

/// Checks both directories. With `reads_store` also reads the whole store. Blocks.
pub(super) fn check_local(options: &DoctorOptions, reads_store: bool) -> LocalChecks {
    let (directory, files) = cluster_files(options);
    let (data, stored_etcd_ids) = data_directory(&options.data_dir, reads_store);
    LocalChecks { checks: vec![directory, data], files, stored_etcd_ids }
}

fn cluster_files(options: &DoctorOptions) -> (Check, ClusterFileContents) {
    let shown = options.clustermesh_config.display();
    match read_cluster_files(&options.clustermesh_config, &options.ignored_clusters) {
        Err(error) => {
            let advice = "mount the Secret cilium-clustermesh there, or set another directory with --clustermesh-config";
            (Check::failed("config directory", format!("{shown}: {error}"), advice), ClusterFileContents::new())
        }
        Ok(files) if files.is_empty() => {
            let found = format!("{shown}: it contains no client file");
            let advice = "a client file has the name of its cluster and contains endpoints:; if the directory is a mounted Secret, check the Secret's name and namespace";
            let check = if options.allow_no_clusters { Check::warning } else { Check::failed };
            (check("config directory", found, advice), files)
        }
        Ok(files) => (Check::ok("config directory", format!("{shown}: {} client file(s)", files.len())), files),
    }
}

/// Checks that a sidecar can use the data directory. Returns the etcd ids in its store.
fn data_directory(directory: &Path, reads_store: bool) -> (Check, BTreeMap<ClusterName, EtcdClusterId>) {
    let shown = directory.display();
    let step = "data directory";
    if let Err(error) = access(directory, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        let check = if directory.exists() {
            let advice = "give the user of meshkeep access, for example with fsGroup";
            Check::failed(step, format!("{shown} cannot be read and written: {error}"), advice)
        } else {
            Check::warning(
                step,
                format!("{shown} does not exist"),
                "meshkeep creates it if it may; mount a volume there to keep the state across restarts",
            )
        };
        return (check, BTreeMap::new());
    }
    if !directory.join("store").exists() {
        return (Check::ok(step, format!("{shown}: empty")), BTreeMap::new());
    }
    if !reads_store {
        return (Check::ok(step, format!("{shown} can be read and written")), BTreeMap::new());
    }
    match inspect(directory, &|_| ()) {
        Err(StoreError::Locked { holder, .. }) => {
            (Check::ok(step, format!("{shown} is in use by {holder}, so the stored etcd cluster ids are not checked")), BTreeMap::new())
        }
        Err(error) => (
            Check::warning(step, error.to_string(), "the next start sets it aside and reads everything from the remote clusters"),
            BTreeMap::new(),
        ),
        Ok(found) => {
            let stored_etcd_ids: BTreeMap<_, _> =
                found.contents.cursors.iter().map(|(scope, cursor)| (scope.cluster.clone(), cursor.etcd_cluster_id)).collect();
            let count = found.contents.record_count();
            (Check::ok(step, format!("{shown}: {count} entries of {} cluster(s)", stored_etcd_ids.len())), stored_etcd_ids)
        }
    }
}

/// Summarizes a client file in one line.
pub(super) fn summary(client: &EtcdConfig) -> String {
    let mut parts = vec![format!("{} endpoint(s)", client.endpoints().len())];
    parts.push(if client.client_certificate.is_some() && !client.insecure_transport {
        "client certificate".to_owned()
    } else {
        "no client certificate".to_owned()
    });
    if let Some(user) = &client.credentials {
        parts.push(format!("user {} with a password", user.username));
    }
    if client.insecure_skip_tls_verify {
        parts.push("any server certificate is accepted".to_owned());
    }
    parts.join(", ")
}

/// Checks the certificate files that a client file names. Blocks.
pub(super) fn certificates(client: &EtcdConfig) -> Vec<Check> {
    let mut checks: Vec<Check> = Vec::new();
    let now = seconds_now();
    for missing in client.missing_files() {
        checks.push(Check::failed("certificates", format!("{} does not exist", missing.display()), missing_advice(&missing)));
    }
    for file in client.certificate_files().into_iter().filter(|file| file.path.exists()) {
        match file.certificates {
            Err(reason) if File::open(&file.path).is_err() => {
                let advice = "give the user of meshkeep read access, for example with defaultMode and fsGroup";
                checks.push(Check::failed("certificates", reason, advice));
            }
            Err(reason) => checks.push(Check::failed("certificates", reason, "replace it with a certificate in PEM form")),
            Ok(found) => checks.extend(found.iter().map(|facts| check_certificate(&format!("{}: ", file.path.display()), facts, now))),
        }
    }
    if let Some(Err(TlsRefusal { reason, advice })) = client.client_certificate_is_trusted() {
        let advice = format!("this is no problem if the server trusts another authority; otherwise: {advice}");
        checks.push(Check::warning(
            "certificates",
            format!("the client's certificate is not trusted by trusted-ca-file: {reason}"),
            advice,
        ));
    }
    checks
}

/// Returns advice for a missing certificate or key: the Secret of Cilium's chart that has it.
/// Agents use these file names (`templates/cilium-agent/daemonset.yaml`, volume
/// `clustermesh-secrets`; `templates/clustermesh-config/_helpers.tpl`).
fn missing_advice(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let (prefix, file) = name.split_once("etcd-client").unwrap_or_default();
    let entry = match file {
        "-ca.crt" => "ca.crt (with tls.caBundle: its ConfigMap or Secret)",
        ".crt" => "tls.crt",
        ".key" => "tls.key",
        _ => return "mount the Secret that contains it there".to_owned(),
    };
    let (secret, content) = match prefix {
        "common-" => ("clustermesh-apiserver-remote-cert", "the certificate for remote clusters"),
        "local-" => ("clustermesh-apiserver-local-cert", "the certificate for KVStoreMesh"),
        _ if prefix.ends_with('.') => {
            return format!(
                "mount the whole Secret with the client files: Cilium's chart adds {name} to it from clustermesh.config.clusters[].tls"
            );
        }
        _ => return "mount the Secret that contains it there".to_owned(),
    };
    format!("mount {entry} of the Secret {secret} as {name}, as Cilium's agents do: the Secrets with client files do not contain {content}")
}

/// Checks the validity period of one certificate. The result names its subject and issuer.
pub(super) fn check_certificate(place: &str, facts: &CertificateFacts, now: i64) -> Check {
    const DAY: i64 = 86_400;
    let CertificateFacts { subject, issuer, not_before, not_after, .. } = facts;
    let date = |seconds: i64| jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string());
    let signer = if subject == issuer { "itself".to_owned() } else { issuer.clone() };
    let holder = format!("{place}{subject}, signed by {signer}");
    if *not_after < now {
        return Check::failed(
            "certificates",
            format!("{holder}, expired {}", date(*not_after)),
            "renew it: servers do not accept it any more",
        );
    }
    if *not_before > now {
        return Check::failed(
            "certificates",
            format!("{holder}, not valid before {}", date(*not_before)),
            "check the clocks of both machines",
        );
    }
    let days = (not_after - now) / DAY;
    let text = format!("{holder}, until {} ({days} days)", date(*not_after));
    if days < EXPIRY_WARNING_DAYS {
        Check::warning("certificates", text, "renew it before it expires")
    } else {
        Check::ok("certificates", text)
    }
}

/// Returns the current time in seconds since 1970.
pub(super) fn seconds_now() -> i64 {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    elapsed.ok().and_then(|elapsed| i64::try_from(elapsed.as_secs()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_for_a_missing_certificate_follows_ciliums_chart() {
        let directory = Path::new("/var/lib/cilium/clustermesh");
        for (name, expected) in [
            ("common-etcd-client.crt", "mount tls.crt of the Secret clustermesh-apiserver-remote-cert as common-etcd-client.crt, "),
            ("common-etcd-client.key", "mount tls.key of the Secret clustermesh-apiserver-remote-cert as common-etcd-client.key, "),
            (
                "common-etcd-client-ca.crt",
                "mount ca.crt (with tls.caBundle: its ConfigMap or Secret) of the Secret clustermesh-apiserver-remote-cert ",
            ),
            ("local-etcd-client.crt", "mount tls.crt of the Secret clustermesh-apiserver-local-cert as local-etcd-client.crt, "),
            ("paris.etcd-client.key", "mount the whole Secret with the client files: Cilium's chart adds paris.etcd-client.key to it"),
            ("etcd-client.key", "mount the Secret that contains it there"),
            ("ca.pem", "mount the Secret that contains it there"),
        ] {
            let advice = missing_advice(&directory.join(name));
            assert!(advice.starts_with(expected), "{name}: {advice}");
        }
    }
}
