//! An invalid value, key, file or flag affects nothing else, and one clear message names it.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::{SMALL, source_key};
use crate::harness::meshkeep::{Home, ProcessExit};
use crate::harness::scene::{Scene, wait_until_served};
use crate::harness::truth::{list, served_objects};

/// Returns invalid values: key in cache form, bytes, and a word that the reason must contain.
fn bad_values(scene: &Scene) -> Vec<(String, Vec<u8>, &'static str)> {
    let cluster = &scene.remotes[0].clusters[0];
    let text = |key: &str| String::from_utf8(cluster.entries[key].clone()).unwrap();
    let (nodes, services) = (cluster.keys_of("nodes/v1"), cluster.keys_of("services/v1"));
    let (ips, identities) = (cluster.keys_of("ip/v1"), cluster.keys_of("identities/v1"));
    let wrong_name = text(&nodes[1]).replace(r#""Cluster":"c01""#, r#""Cluster":"c09""#);
    let wrong_id = text(&services[0]).replace(r#""clusterID":1"#, r#""clusterID":9"#);
    let wrong_ip = text(&ips[0]).replacen(r#""IP":"10."#, r#""IP":"11."#, 1);
    vec![
        (nodes[0].clone(), b"{ not json".to_vec(), ""),
        (nodes[1].clone(), wrong_name.into_bytes(), "c09"),
        (services[0].clone(), wrong_id.into_bytes(), "9"),
        (services[1].clone(), vec![0xff, 0x00, 0xfe], ""),
        (ips[0].clone(), wrong_ip.into_bytes(), "11."),
        (identities[0].clone(), b"k8s:app=x;k8s:io.cilium.k8s.policy.cluster=c09;".to_vec(), "c09"),
        // keys that never had a valid value
        ("cilium/cache/identities/v1/c01/id/999999".into(), b"k8s:io.cilium.k8s.policy.cluster=c01;".to_vec(), "999999"),
        ("cilium/cache/ip/v1/c01/not-an-address".into(), b"{}".to_vec(), ""),
        ("cilium/cache/nodes/v1/c01/nobody".into(), b"[]".to_vec(), ""),
    ]
}

#[tokio::test]
async fn invalid_values_are_listed_and_the_last_valid_ones_stay() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let mut truth = scene.truth();
    let bad = bad_values(&scene);
    for (key, value, _) in &bad {
        scene.remotes[0].etcd.put(source_key(scene.remotes[0].form, "c01", key), value.clone()).await;
        truth.put_bad(key, value.clone());
    }
    let expected = truth.expected();
    wait_until_served(scene.meshkeep(), &expected, "putting bad values").await;
    scene.wait_until_follower_agrees(&expected, "putting bad values").await;
    let rejected = rejected(&scene).await;
    let mut keys: Vec<&String> = bad.iter().map(|(key, ..)| key).collect();
    keys.sort();
    assert_eq!(rejected.iter().map(|item| item["key"].as_str().unwrap()).collect::<Vec<_>>(), keys);
    for (key, _, word) in &bad {
        let item = rejected.iter().find(|item| item["key"] == **key).unwrap();
        let reason = item["reason"].as_str().unwrap();
        assert!(!reason.is_empty() && reason.contains(word), "{item} should say {word:?}");
    }
    assert_eq!(scene.meshkeep().phase("c01").await, "live");

    // after a restart, without a source
    scene.remotes[0].proxy.cut().await;
    scene.stop_meshkeep().await;
    scene.start_meshkeep().await;
    wait_until_served(scene.meshkeep(), &expected, "a restart with bad values").await;
    let keys_and_reasons =
        |items: Vec<Value>| items.into_iter().map(|item| (item["key"].clone(), item["reason"].clone())).collect::<Vec<_>>();
    assert_eq!(keys_and_reasons(self::rejected(&scene).await), keys_and_reasons(rejected));

    // valid again
    scene.remotes[0].proxy.restore().await;
    let cluster = scene.remotes[0].clusters[0].clone();
    for (key, ..) in &bad {
        let source_key = source_key(scene.remotes[0].form, "c01", key);
        match cluster.entries.get(key) {
            Some(value) => scene.remotes[0].etcd.put(source_key, value.clone()).await,
            None => scene.remotes[0].etcd.delete(source_key).await,
        };
    }
    scene.wait_until_settled("mending the bad values").await;
    assert_eq!(self::rejected(&scene).await, Vec::<Value>::new());
}

#[tokio::test]
async fn keys_that_are_not_entries_disturb_nothing() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let strange: [&[u8]; 8] = [
        b"cilium/state/nodes/v1/c01/\xff\xfe",
        b"cilium/state/nodes/v1/c01/",
        b"cilium/state/nodes/v1/c01",
        b"cilium/state/nodes/v1/other/worker-1",
        b"cilium/state/services/v1/c01/no-namespace",
        b"cilium/state/identities/v1/id/",
        b"cilium/state/identities/v1/locks/x",
        b"cilium/state/ip/v1/other/10.0.0.1",
    ];
    for key in &strange[..4] {
        scene.remotes[0].etcd.put(*key, "{}").await;
    }
    scene.start_meshkeep().await;
    scene.meshkeep().wait_for_phase("c01", "live").await;
    for key in &strange[4..] {
        scene.remotes[0].etcd.put(*key, "{}").await;
    }
    scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
    // the objects must match; a strange key may be listed among the raw entries as rejected
    let truth = scene.truth().expected();
    scene.wait_until_follower_agrees(&truth, "strange keys").await;
    let objects = || async { (served_objects(scene.meshkeep()).await == truth.objects).then_some(()) };
    eventually("the truth despite strange keys", objects).await;
    assert_eq!(scene.meshkeep().phase("c01").await, "live");
    // keys below a watched prefix are reported, also page by page
    let not_entries = ["cilium/state/identities/v1/id/", "cilium/state/nodes/v1/c01/", "cilium/state/nodes/v1/c01/\u{fffd}\u{fffd}"];
    let reported = || async { keys_of(&rejected(&scene).await).starts_with(&not_entries).then_some(()) };
    eventually("keys that are not entries to be reported", reported).await;
    let mut one_by_one = Vec::new();
    let mut path = "/v1/rejected?limit=1".to_owned();
    loop {
        let page = scene.meshkeep().get(&path).await;
        one_by_one.extend(page["items"].as_array().unwrap().clone());
        let Some(token) = page["nextPageToken"].as_str() else { break };
        path = format!("/v1/rejected?limit=1&pageToken={token}");
    }
    assert_eq!(keys_of(&one_by_one), keys_of(&rejected(&scene).await));
    assert_eq!(scene.meshkeep().get("/v1/status").await["counts"]["rejected"], json!(one_by_one.len()));
    // one key is deleted while meshkeep is down: after the restart, the list of new puts and the
    // list of existing keys must together show the deletion
    scene.stop_meshkeep().await;
    scene.remotes[0].etcd.delete(strange[0]).await;
    scene.start_meshkeep().await;
    let reported = || async { keys_of(&rejected(&scene).await).starts_with(&not_entries[..2]).then_some(()) };
    eventually("only the remaining keys to be reported", reported).await;
    assert!(!keys_of(&rejected(&scene).await).contains(&not_entries[2]));
    for key in &strange[1..] {
        scene.remotes[0].etcd.delete(*key).await;
    }
    scene.wait_until_settled("the deletion of the strange keys").await;
    // entries decide whether the scene has settled; rejected keys are reported independently
    eventually("strange keys to be reported no more", || async { rejected(&scene).await.is_empty().then_some(()) }).await;
}

/// A remote that puts invalid values as fast as it can must not hide the rest of the log.
#[tokio::test]
async fn repeated_invalid_keys_are_logged_once_per_cause() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    for round in 0..20 {
        for _ in 0..100 {
            scene.remotes[0].etcd.put("cilium/state/nodes/v1/c01/", "{}").await;
        }
        scene.remotes[0]
            .etcd
            .put_many((0..100).map(|number| (format!("cilium/state/services/v1/c01/no-namespace-{round}-{number}"), "{}")))
            .await;
    }
    scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
    let reported = || async { (!rejected(&scene).await.is_empty()).then_some(()) };
    eventually("the keys to be reported", reported).await;
    let objects = || async { (served_objects(scene.meshkeep()).await == scene.truth().expected().objects).then_some(()) };
    eventually("the truth behind 4,000 strange keys", objects).await;
    // one line a minute for each of the two kinds; a slow machine may need a second minute
    let lines = scene.meshkeep().log_lines_with(&["rejected a key of cluster"]);
    assert!((1..=4).contains(&lines), "{lines} lines");
}

fn keys_of(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["key"].as_str().unwrap()).collect()
}

async fn rejected(scene: &Scene) -> Vec<Value> {
    list(scene.meshkeep(), "/v1/rejected").await
}

#[tokio::test]
async fn unknown_prefixes_are_reported_once() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.remotes[0].etcd.put("cilium/state/frobs/v1/c01/a", "1").await;
    scene.remotes[0].etcd.put("cilium/state/frobs/v1/c01/b", "2").await;
    scene.start_meshkeep().await;
    scene.wait_until_settled("loading with an unknown prefix").await;
    let state = scene.meshkeep().wait_for_field("c01", "unknownPrefixes", "frobs/v1").await;
    assert_eq!(state["unknownPrefixes"].as_array().map(Vec::len), Some(1), "{state}");
    assert_eq!(scene.meshkeep().log_lines_with(&["frobs/v1"]), 1);
    // a second connection does not report it again
    scene.remotes[0].proxy.cut().await;
    scene.remotes[0].proxy.restore().await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
    scene.wait_until_settled("a reconnect").await;
    assert_eq!(scene.meshkeep().log_lines_with(&["frobs/v1"]), 1);
}

/// Puts unknown prefixes before, between and after the known ones, in both forms, and adds, extends
/// and removes them while meshkeep runs.
#[tokio::test]
async fn unknown_prefixes_are_counted_wherever_they_are() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.home = scene.home.with_flags(&["--unknown-prefix-interval=100ms"]);
    // the other root of a source is scanned too
    scene.remotes[0].etcd.put("cilium/cache/other/v1/a", "1").await;
    for (remote, root) in scene.remotes.iter().zip(["cilium/state", "cilium/cache"]) {
        let rests = ["0first", "aaa/v1/a", "aaa/v1/b", "ip/v2/x", "nodes/loose", "nodes/v1alpha1/x", "zzz/x/y", "zzz/z"];
        remote.etcd.put_many(rests.map(|rest| (format!("{root}/{rest}"), "1"))).await;
        // not below the root, so not scanned
        remote.etcd.put(format!("{root}x/v1/a"), "1").await;
    }
    scene.start_meshkeep().await;
    scene.wait_until_settled("loading with unknown prefixes").await;
    for (name, remote, root) in [("c01", 0, "cilium/state"), ("c02", 1, "cilium/cache")] {
        let counts = |pairs: &[(&str, u64)]| -> Value {
            let other = Some(("cilium/cache/other/v1/".to_owned(), Value::from(1))).filter(|_| remote == 0);
            let pairs = pairs.iter().map(|(rest, count)| (format!("{root}/{rest}"), Value::from(*count)));
            pairs.chain(other).collect::<serde_json::Map<_, _>>().into()
        };
        let wait_for_keys = async |expected: &[(&str, u64)]| {
            let expected = counts(expected);
            eventually(&format!("unknown keys of {name}: {expected}"), || async {
                let state = scene.meshkeep().get(&format!("/v1/clusters/{name}")).await;
                let prefixes: Vec<&str> = state["unknownPrefixes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let listed: Vec<&str> = expected.as_object().unwrap().keys().map(String::as_str).collect();
                (state.get("unknownKeys").cloned().unwrap_or_else(|| counts(&[])) == expected && prefixes == listed).then_some(())
            })
            .await;
        };
        let etcd = &scene.remotes[remote].etcd;
        wait_for_keys(&[("0first", 1), ("aaa/v1/", 2), ("ip/v2/", 1), ("nodes/loose", 1), ("nodes/v1alpha1/", 1), ("zzz/", 2)]).await;
        etcd.put(format!("{root}/aaa/v1/c"), "1").await;
        etcd.put(format!("{root}/bbb/v1/a"), "1").await;
        etcd.delete(format!("{root}/ip/v2/x")).await;
        wait_for_keys(&[("0first", 1), ("aaa/v1/", 3), ("bbb/v1/", 1), ("nodes/loose", 1), ("nodes/v1alpha1/", 1), ("zzz/", 2)]).await;
        for rest in ["0first", "aaa/v1/a", "aaa/v1/b", "aaa/v1/c", "bbb/v1/a", "nodes/loose", "nodes/v1alpha1/x", "zzz/x/y", "zzz/z"] {
            etcd.delete(format!("{root}/{rest}")).await;
        }
        wait_for_keys(&[]).await;
        assert_eq!(scene.meshkeep().log_lines_with(&[name, "zzz/", "does not know"]), 1);
    }
    scene.wait_until_settled("the deletion of the unknown prefixes").await;
}

#[tokio::test]
async fn an_unresponsive_remote_does_not_disturb_others() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    scene.home.write_cluster("silent", &format!("endpoints:\n- http://{}\n", silent.local_addr().unwrap()));
    scene.home.write_cluster("refused", "endpoints:\n- http://127.0.0.1:1\n");
    scene.start_meshkeep().await;
    scene.wait_until_settled("loading with remotes that do not answer").await;
    let refused = scene.meshkeep().wait_for_field("refused", "lastError", "127.0.0.1:1").await;
    assert!(refused["failures"].as_u64() >= Some(1), "{refused}");
}

/// Checks that the process ended with this code, and that one line of its log contains all of these
/// words.
fn assert_exit_message(ended: &ProcessExit, code: i32, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{}", ended.log);
    let lines = ended.log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    assert_eq!(lines, 1, "one line should name {words:?}:\n{}", ended.log);
    assert!(ended.log.matches("os error").count() <= 1, "the cause should be reported once:\n{}", ended.log);
    assert!(!ended.log.contains("panicked"), "{}", ended.log);
}

#[tokio::test]
async fn an_unwritable_data_directory_ends_the_start() {
    let home = Home::new();
    let file = home.config_directory().with_file_name("a-file");
    fs::write(&file, "").unwrap();
    let below = file.join("data");
    let flag = format!("--data-dir={}", below.display());
    let ended = home.with_flags(&[&flag]).run_to_the_end().await;
    assert_exit_message(&ended, 1, &[&below.display().to_string()]);
}

#[tokio::test]
async fn a_start_waits_for_a_data_directory_and_names_its_holder() {
    let mut home = Home::new();
    let first = home.start().await;
    let data = home.data_directory().display().to_string();
    let second = Home::new().with_flags(&[&format!("--data-dir={data}"), "--store-lock-wait=1s"]).run_to_the_end().await;
    assert_exit_message(&second, 1, &[&data, &first.id().to_string(), "stop that process"]);
    assert!(second.elapsed >= Duration::from_secs(1), "{:?}", second.elapsed);
    assert_eq!(first.get("/v1/nodes").await["items"], json!([]));
    // once the directory is free it can be used
    first.kill();
    home.start().await;
}

#[tokio::test]
async fn a_port_in_use_ends_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = Home::new().with_only_flags(&[&format!("--listen={address}")]).run_to_the_end().await;
    assert_exit_message(&ended, 1, &[&address]);
}

#[tokio::test]
async fn a_public_address_is_refused_without_tls() {
    let ended = Home::new().with_only_flags(&["--listen=0.0.0.0:0"]).run_to_the_end().await;
    assert_ne!(ended.status.code(), Some(0));
    assert!(ended.log.contains("0.0.0.0:0") && ended.log.contains("--insecure"), "{}", ended.log);
}

#[tokio::test]
async fn a_bad_flag_is_a_usage_error() {
    for flag in ["--no-such-flag", "--listen=nonsense", "--cluster-id=many", "--kvstore-opt=etcd.limit=few"] {
        let ended = Home::new().with_flags(&[flag]).run_to_the_end().await;
        assert_eq!(ended.status.code(), Some(2), "{flag}: {}", ended.log);
    }
}

#[tokio::test]
async fn meshkeep_waits_for_a_missing_config_directory() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let (directory, aside) = (scene.home.config_directory(), scene.home.config_directory().with_extension("aside"));
    fs::rename(&directory, &aside).unwrap();
    scene.start_meshkeep().await;
    let named = directory.display().to_string();
    eventually("a log line that names the directory", || async { (scene.meshkeep().log_lines_with(&[&named]) > 0).then_some(()) }).await;
    assert_eq!(scene.meshkeep().get("/v1/clusters").await["items"], json!([]));
    fs::rename(&aside, &directory).unwrap();
    scene.wait_until_settled("the arrival of the directory").await;
}

#[tokio::test]
async fn a_disk_that_fills_up_is_reported_and_serving_continues() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    // files may not grow beyond 4 MiB (in blocks of 512 bytes); the signal SIGXFSZ is ignored
    let home = std::mem::replace(&mut scene.home, Home::new());
    scene.home = home.after_shell_commands("trap '' XFSZ; ulimit -f 8192");
    scene.start_meshkeep().await;
    scene.wait_until_settled("the first loading").await;
    assert_eq!(store_state(&scene).await, "healthy");
    // 12 MB that do not compress
    for index in 1..=200 {
        let key = format!("cilium/cache/ip/v1/c01/10.200.0.{index}");
        let value = format!(r#"{{"IP":"10.200.0.{index}","HostIP":"","ID":2,"Key":1,"Metadata":"{}"}}"#, noise(index));
        let remote = &mut scene.remotes[0];
        remote.etcd.put(source_key(remote.form, "c01", &key), value.clone()).await;
        remote.clusters[0].entries.insert(key, value.into_bytes());
    }
    scene.wait_until_settled("the disk being full").await;
    eventually("the store to fail", || async { (store_state(&scene).await != "healthy").then_some(()) }).await;
    let data = scene.home.data_directory().display().to_string();
    eventually("a message to name the data directory", async || (scene.meshkeep().log_lines_with(&[&data]) >= 1).then_some(())).await;

    // with enough space everything is fetched and stored
    scene.kill_meshkeep();
    let home = std::mem::replace(&mut scene.home, Home::new());
    scene.home = home.after_shell_commands(":");
    scene.start_meshkeep().await;
    scene.wait_until_settled("space on the disk again").await;
    // the part that the full disk cut off may be reported as lost
    let has_recovered = async || ["healthy", "lost"].contains(&store_state(&scene).await.as_str()).then_some(());
    eventually("the store to recover", has_recovered).await;
}

async fn store_state(scene: &Scene) -> String {
    scene.meshkeep().get("/v1/status").await["store"]["state"].as_str().unwrap().to_owned()
}

/// Returns 60 kB that do not compress.
fn noise(seed: u32) -> String {
    use rand::{Rng, SeedableRng};
    let random = rand::rngs::StdRng::seed_from_u64(seed.into());
    random.sample_iter(rand::distr::Alphanumeric).take(60_000).map(char::from).collect()
}
