//! Lookups return the current labels of an identity, although they cache decoded labels.

use super::*;

fn put(view: &mut View, kind: Kind, name: &str, value: &str) {
    let key = EntryKey::new(kind, cluster(0), name);
    let context =
        wire::Context { cluster: &key.cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::default() };
    let decoded = wire::decode(&key, value.as_bytes(), &context).map(Arc::new).map_err(|error| error.as_str().into());
    let scope = Scope { cluster: key.cluster.clone(), kind };
    let change = Change::Put { key, value: value.as_bytes().into(), decoded, source: SourceStamp::default() };
    view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::UNIX_EPOCH);
}

/// Returns the label `app` of the identity at the test's address.
fn app(view: &View) -> Option<String> {
    let found = view.lookup("10.0.0.1".parse().unwrap(), None);
    found[0].labels.as_ref().map(|labels| labels.get("k8s:app").unwrap_or_default().to_owned())
}

#[test]
fn changed_labels_are_returned_at_once() {
    let mut view = View::starting_at(Sequence(1));
    put(&mut view, Kind::Ip, "10.0.0.1", r#"{"IP":"10.0.0.1","Mask":null,"HostIP":"","ID":300}"#);
    assert_eq!(app(&view), None);
    let mut before = view.clone();
    for name in ["cart", "db", &"x".repeat(10_000)] {
        // between two usable values, only the labels change and no index does
        put(&mut view, Kind::Identity, "300", "k8s:app=other;");
        assert_eq!(app(&view).as_deref(), Some("other"));
        put(&mut view, Kind::Identity, "300", &format!("k8s:app={name};"));
        assert_eq!([app(&view), app(&view)], [Some(name.to_owned()), Some(name.to_owned())]);
        // an unusable value keeps the labels
        put(&mut view, Kind::Identity, "300", "");
        assert_eq!(app(&view).as_deref(), Some(name));
        before.clone_from(&view);
        assert_eq!(app(&before).as_deref(), Some(name));
    }
    // an older snapshot keeps its labels
    put(&mut view, Kind::Identity, "300", "k8s:app=last;");
    assert_eq!((app(&view).as_deref(), app(&before).map(|app| app.len())), (Some("last"), Some(10_000)));
    view.apply(Command::Remove { cluster: cluster(0), reason: DeleteReason::ClusterRemoved }, SystemTime::UNIX_EPOCH);
    put(&mut view, Kind::Ip, "10.0.0.1", r#"{"IP":"10.0.0.1","Mask":null,"HostIP":"","ID":300}"#);
    assert_eq!(app(&view), None);
}
