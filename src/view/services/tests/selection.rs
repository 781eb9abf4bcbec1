//! Selection of backends.

use super::*;

/// Returns a member with active backends, backends in another state, and one without ports, which
/// is ignored.
fn member(active: usize, state: BackendState, other: usize) -> ServiceMember {
    let mut backends = Vec::new();
    for (state, count) in [(BackendState::Active, active), (state, other)] {
        for _ in 0..count {
            let ports = vec![BackendPort { port: 80, protocol: "TCP".to_owned(), names: Vec::new() }];
            backends.push(bare(state, ports));
        }
    }
    backends.push(bare(BackendState::Active, Vec::new()));
    let record = service_record(true);
    ServiceMember { cluster: cluster("paris"), service: Some(record), slices: Vec::new(), backends, cluster_id: 1 }
}

fn bare(state: BackendState, ports: Vec<BackendPort>) -> GlobalBackend {
    let ip = "10.1.0.1".parse().unwrap();
    GlobalBackend { ip, ports, hostname: String::new(), zone: None, node_name: String::new(), slices: Vec::new(), state }
}

fn service_record(include_external: bool) -> Arc<Record> {
    let view = view_after(&[service_put("paris", Service { include_external, ..cart(&[]) })]);
    view.record(&EntryKey::new(Kind::Service, cluster("paris"), "shop/cart")).unwrap()
}

/// All cases of `SelectBackends` (Cilium's `pkg/clustermesh/loadbalancer/selectbackends.go`).
#[test]
fn backends_are_selected_as_an_agent_does() {
    use Affinity::{Local, None, Remote};
    use BackendState::{Active, Maintenance, Terminating, TerminatingNotServing};
    let (some, no) = (|| member(1, Active, 0), || member(0, Active, 0));
    let (ending, bad) = (|| member(0, Terminating, 1), || member(0, Maintenance, 1));
    let cases = [
        // without affinity: both, independent of health
        (None, some(), some(), "noAffinity", (true, true)),
        (None, bad(), bad(), "noAffinity", (true, true)),
        (None, no(), no(), "noAffinity", (true, true)),
        // local: always local backends; remote ones only if no local one is active and a remote one
        // is healthy
        (Local, some(), some(), "localActive", (true, false)),
        (Local, member(1, Maintenance, 3), some(), "localActive", (true, false)),
        (Local, no(), some(), "localInactive", (true, true)),
        (Local, bad(), some(), "localInactive", (true, true)),
        // terminating backends are healthy but not active
        (Local, ending(), some(), "localInactive", (true, true)),
        (Local, no(), ending(), "localInactive", (true, true)),
        (Local, no(), bad(), "localInactiveRemoteUnhealthy", (true, false)),
        (Local, ending(), member(0, TerminatingNotServing, 2), "localInactiveRemoteUnhealthy", (true, false)),
        (Local, no(), no(), "localInactiveRemoteUnhealthy", (true, false)),
        // remote: always remote backends; local ones only if no remote one is healthy and a local
        // one is
        (Remote, some(), some(), "remoteHealthy", (false, true)),
        (Remote, some(), ending(), "remoteHealthy", (false, true)),
        (Remote, some(), no(), "remoteUnhealthy", (true, true)),
        (Remote, ending(), bad(), "remoteUnhealthy", (true, true)),
        (Remote, bad(), bad(), "noneHealthy", (false, true)),
        (Remote, no(), no(), "noneHealthy", (false, true)),
    ];
    for (number, (affinity, local, remote, rule, sides)) in cases.into_iter().enumerate() {
        let chosen = select_backends(affinity, LocalService::Known(&local), remote.backends.iter());
        assert_eq!((chosen.rule.api_name(), (chosen.local, chosen.remote)), (rule, sides), "case {number}: {affinity:?}");
    }
}

/// `SelectBackends` checks `GetAnnotationIncludeExternal` before every affinity. An unknown own
/// cluster counts as having an empty global service.
#[test]
fn the_local_service_precedes_the_affinity() {
    let remote = member(1, BackendState::Active, 0);
    let not_global = ServiceMember { service: Some(service_record(false)), ..member(1, BackendState::Active, 0) };
    for affinity in Affinity::ALL {
        let chosen = |local| {
            let chosen = select_backends(affinity, local, remote.backends.iter());
            (chosen.rule.api_name(), chosen.local, chosen.remote)
        };
        assert_eq!(chosen(LocalService::Known(&not_global)), ("notGlobal", true, false), "{affinity:?}");
        assert_eq!(chosen(LocalService::Missing), ("noLocalService", false, false), "{affinity:?}");
        let unknown = match affinity {
            Affinity::None => ("noAffinity", true, true),
            Affinity::Local => ("localInactive", true, true),
            Affinity::Remote => ("remoteHealthy", false, true),
        };
        assert_eq!(chosen(LocalService::Unknown), unknown, "{affinity:?}");
    }
}
