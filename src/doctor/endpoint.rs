//! Checks of one endpoint, from its name up to the server's release.

use std::time::Duration;

use super::local::{check_certificate, seconds_now};
use super::{Check, CheckOutcome};
use cilium_kvstore::{Endpoint, EtcdConfig, Handshake, ServerFacts, TlsRefusal, examine};

/// Domain in which Cilium's chart names clusters that have only addresses
/// (`clustermesh.config.domain`).
const MESH_DOMAIN: &str = "mesh.cilium.io";

/// Maximum difference between the clocks, in seconds. A larger one makes certificate dates and ages
/// unreliable.
const CLOCK_SKEW_SECONDS_MAX: i64 = 5;

/// etcd bugs that affect a mirror: the first patch releases of etcd 3.4 and 3.5 without the bug,
/// its effect and its issue.
const BUGS: [(u64, u64, &str, &str); 4] = [
    (36, 18, "a watch that starts at a compacted delete gets no events", "etcd#18089"),
    (31, 13, "a watch can lose events while its stream is starved", "etcd#17529"),
    (38, 22, "a watch from a future revision gets old events", "etcd#20221"),
    (25, 8, "a progress notification can arrive before earlier events", "etcd#15220"),
];

/// Runs the checks up to `/version`. Stops at the first check that fails.
pub(super) async fn check_endpoint(client: &EtcdConfig, endpoint: &Endpoint, step_max: Duration) -> Vec<Check> {
    let result = match examine(client, endpoint, step_max).await {
        Ok(result) => result,
        Err(error) => return vec![Check::failed("endpoint", error.to_string(), "correct the client file")],
    };
    let mut checks = Vec::new();
    match result.addresses {
        Some(Ok(addresses)) => {
            let mut texts: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
            texts.dedup();
            checks.push(Check::ok("dns", texts.join(", ")));
        }
        Some(Err(error)) => {
            checks.push(Check::failed("dns", error, name_advice(&result.host)));
        }
        None => {}
    }
    match result.connected {
        Some(Ok((peer, elapsed))) => checks.push(Check::ok("tcp", format!("{peer} in {:.1} ms", elapsed.as_secs_f64() * 1e3))),
        Some(Err(error)) => {
            let advice = "check that clustermesh-apiserver runs there, that its Service is reachable from here, and that no firewall or NetworkPolicy blocks it";
            checks.push(Check::failed("tcp", error, advice));
        }
        None => {}
    }
    checks.extend(result.handshake.iter().flat_map(check_tls));
    if checks.iter().all(|check| check.outcome != CheckOutcome::Failed) {
        checks.extend(result.server.map(|server| check_server(client, server)).into_iter().flatten());
    }
    checks
}

/// Returns advice for a name that does not resolve.
fn name_advice(host: &str) -> &'static str {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    if name.strip_suffix(MESH_DOMAIN).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')) {
        "DNS has no names in mesh.cilium.io: give this pod the hostAliases that Cilium's chart gives its own pods, or add `cilium-host-aliases` to the client file"
    } else if name.ends_with(".svc") || name.contains(".svc.") {
        "this is the name of a Service: check that it exists in that namespace, and that this machine uses the cluster's DNS (a pod with hostNetwork needs dnsPolicy ClusterFirstWithHostNet)"
    } else {
        "check the name in the client file, and that this machine can resolve it (`getent hosts NAME`); if DNS does not have it, give this pod hostAliases, or add `cilium-host-aliases` to the client file"
    }
}

fn check_tls(handshake: &Handshake) -> Vec<Check> {
    let mut checks = Vec::new();
    let now = seconds_now();
    checks.extend(handshake.chain.iter().map(|facts| Check { step: "tls", ..check_certificate("server: ", facts, now) }));
    if let Some(TlsRefusal { reason, advice }) = &handshake.untrusted {
        checks.push(Check::failed("tls", format!("the server's certificate is not trusted: {reason}"), advice.clone()));
    }
    if let Some(TlsRefusal { reason, advice }) = &handshake.error {
        let advice = client_certificate_advice(handshake).map_or_else(|| advice.clone(), |more| format!("{advice}; {more}"));
        checks.push(Check::failed("tls", reason.clone(), advice));
    }
    if let Some(protocol) = &handshake.protocol {
        let client_auth = if handshake.acceptable_authorities.is_some() { ", requires a client certificate" } else { "" };
        checks.push(Check::ok("tls", format!("{protocol}{client_auth}")));
    }
    checks
}

/// Returns advice for a client certificate that the server refuses, if the server asked for one.
fn client_certificate_advice(handshake: &Handshake) -> Option<String> {
    let authorities = handshake.acceptable_authorities.as_ref()?;
    let accepted = if authorities.is_empty() {
        "does not say which authorities it accepts".to_owned()
    } else {
        format!("accepts certificates of {}", authorities.join(" and "))
    };
    let Some(last) = handshake.client_chain.last() else {
        return Some(format!("the server requires a client certificate and {accepted}: set cert-file and key-file"));
    };
    let issuer = &last.issuer;
    if authorities.contains(issuer) {
        let key = last.issuer_key_id.as_ref().map(|id| format!(" (key {id})")).unwrap_or_default();
        return Some(format!(
            "the server {accepted}, and an authority of that name signed the client's certificate{key}: if its names, dates and purpose are right, the server's authority has the same name and a different key"
        ));
    }
    Some(format!(
        "the server {accepted}, and {issuer} signed the client's certificate: use a certificate that an authority of the server signed; or, if {issuer} is an intermediate authority, append its certificate to cert-file"
    ))
}

/// Checks the server's release and its clock.
fn check_server(client: &EtcdConfig, server: Result<ServerFacts, String>) -> Vec<Check> {
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            let advice = if client.client_certificate.is_some() && !client.insecure_transport {
                "the server may have refused the client's certificate: check that an authority that it trusts signed it"
            } else {
                "check that this is an etcd, and whether it requires a client certificate (cert-file and key-file)"
            };
            return vec![Check::failed("server", error, advice)];
        }
    };
    let mut checks = vec![Check::ok("server", format!("etcd {}", server.version))];
    checks.extend(known_bugs(&server.version).map(|(effect, issue, fixed_in)| {
        Check::warning("server", format!("{effect} ({issue})"), format!("meshkeep has a workaround; upgrade to {fixed_in} or newer"))
    }));
    if let Some(ahead) = server.clock_ahead_seconds.filter(|ahead| ahead.abs() > CLOCK_SKEW_SECONDS_MAX) {
        let direction = if ahead > 0 { "ahead of" } else { "behind" };
        let text = format!("the server's clock is {} s {direction} this machine's", ahead.abs());
        checks.push(Check::warning("clock", text, "synchronise both machines with NTP: certificates and ages depend on their clocks"));
    }
    checks
}

/// Returns the bugs of a release: effect, issue, and the release that fixes it.
fn known_bugs(version: &str) -> impl Iterator<Item = (&'static str, &'static str, String)> {
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u64>().ok());
    let release = (numbers.next(), numbers.next(), numbers.next());
    BUGS.into_iter().filter_map(move |(fixed_in_34, fixed_in_35, effect, issue)| match release {
        (Some(3), Some(4), Some(patch)) if patch < fixed_in_34 => Some((effect, issue, format!("3.4.{fixed_in_34}"))),
        (Some(3), Some(5), Some(patch)) if patch < fixed_in_35 => Some((effect, issue, format!("3.5.{fixed_in_35}"))),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_depends_on_the_domain_of_the_name() {
        for name in ["paris.mesh.cilium.io", "PARIS.Mesh.Cilium.IO", "paris.mesh.cilium.io.", "a.b.mesh.cilium.io"] {
            assert!(name_advice(name).starts_with("DNS has no names in mesh.cilium.io"), "{name}");
        }
        for name in ["paris.example.org", "notmesh.cilium.io", "mesh.cilium.io.example.org", "paris", "etcd.paris.cilium.io"] {
            assert!(name_advice(name).contains("check the name in the client file, and that this machine can resolve it"), "{name}");
        }
        for name in ["clustermesh-apiserver.kube-system.svc", "clustermesh-apiserver.kube-system.svc.cluster.local"] {
            assert!(name_advice(name).contains("the cluster's DNS"), "{name}");
        }
    }

    #[test]
    fn known_bugs_depend_on_the_release() {
        let issues = |version| known_bugs(version).map(|(_, issue, fixed_in)| format!("{issue} {fixed_in}")).collect::<Vec<_>>();
        assert_eq!(issues("3.5.1"), ["etcd#18089 3.5.18", "etcd#17529 3.5.13", "etcd#20221 3.5.22", "etcd#15220 3.5.8"]);
        assert_eq!(issues("3.4.24"), ["etcd#18089 3.4.36", "etcd#17529 3.4.31", "etcd#20221 3.4.38", "etcd#15220 3.4.25"]);
        assert_eq!(issues("3.4.37"), ["etcd#20221 3.4.38"]);
        assert_eq!(issues("3.5.21-rc.0"), ["etcd#20221 3.5.22"]);
        for newer in ["3.5.22", "3.6.0", "3.7.3", "4.0.0", "nonsense", ""] {
            assert_eq!(issues(newer), [""; 0], "{newer}");
        }
    }
}
