//! Dumps of every form, made by Cilium's and etcd's own tools (tests/data/dumps), and dumps that
//! must be refused.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::forms::{FormError, parse};
use super::unpack::unpack;
use super::*;
use crate::model::{EntryKey, Kind};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dumps").join(name)
}

fn read(path: &Path) -> Result<Dump, DumpError> {
    read_dump(path, &DumpOptions::default())
}

/// Writes a file and reads it as a dump.
fn read_text(text: &str, options: &DumpOptions) -> Result<Dump, DumpError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    read_dump(file.path(), options)
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T, DumpError>) -> String {
    outcome.expect_err("must be refused").to_string()
}

fn rejected(dump: Dump) -> Vec<String> {
    let changes = dump.into_commands().flat_map(|command| match command {
        Command::Apply { changes, .. } => changes,
        _ => Vec::new(),
    });
    let rejection = |change| match change {
        Change::Put { key, decoded: Err(reason), .. } => Some(format!("{key}: {reason}")),
        _ => None,
    };
    changes.filter_map(rejection).collect()
}

#[test]
fn dumps_of_cilium_and_etcd_are_recognised_by_their_shape() {
    const HEARTBEAT: &str = "2026-01-12T09:31:";
    for (name, form, clusters, count, has_revisions) in [
        ("kvstore-paris.txt", "cilium-dbg kvstore get --recursive", "paris", 11, false),
        ("kvstore-tokyo.txt", "cilium-dbg kvstore get --recursive", "tokyo", 11, false),
        ("kvstore-kvstoremesh.json", "cilium-dbg kvstore get --recursive -o json", "paris,tokyo", 22, true),
        ("etcdctl-tokyo.json", "etcdctl get --prefix -w json", "tokyo", 11, true),
        ("etcdctl-kvstoremesh.json", "etcdctl get --prefix -w json", "paris,tokyo", 22, true),
        ("cilium-sysdump-20260112-093215.zip", "cilium sysdump", "paris", 10, true),
    ] {
        let dump = read(&fixture(name)).unwrap();
        let names: Vec<_> = dump.clusters().map(ToString::to_string).collect();
        assert_eq!((dump.source.form, &*names.join(","), dump.entry_count()), (form, clusters, count), "{name}");
        assert_eq!(dump.warnings, Vec::<String>::new(), "{name}");
        let time = jiff::Timestamp::try_from(dump.source.time).unwrap().to_string();
        assert!(time.starts_with(HEARTBEAT) && dump.source.time_from == DumpTimeSource::Heartbeat, "{name}: {time}");
        let all = || dump.entries.values().flatten();
        assert!(all().all(|entry| (entry.source.mod_revision.0 > 0) == has_revisions), "{name}");
        assert_eq!(all().any(|entry| entry.source.lease.0 > 0), has_revisions, "{name}");
        assert_eq!(rejected(dump), Vec::<String>::new(), "{name}");
    }
}

/// The values of the text form are byte for byte those of the JSON form, also if they are binary.
#[test]
fn text_and_json_have_the_same_values() {
    let values = |name: &str| -> BTreeMap<String, Arc<[u8]>> {
        let dump = read(&fixture(name)).unwrap();
        dump.entries.into_values().flatten().map(|entry| (entry.key.to_string(), entry.value)).collect()
    };
    let text = values("kvstore-tokyo.txt");
    assert_eq!(text, values("etcdctl-tokyo.json"));
    assert!(text.keys().any(|key| key.contains("endpointslices")), "{:?}", text.keys());
}

#[test]
fn values_with_line_breaks_and_log_lines_between_keys_are_separated() {
    let log = "time=2026-11-28T23:47:32Z level=info msg=\"Starting to watch prefix\" subsys=cilium-dbg\n";
    let parsed =
        parse(format!("{log}Defaulted container\ncilium/a => 1\n2\n{log}cilium/b => \ncilium/c => x => y\n\n").as_bytes()).unwrap();
    let pairs: Vec<_> = parsed.pairs.iter().map(|pair| (&*pair.key, str::from_utf8(&pair.value).unwrap())).collect();
    assert_eq!(pairs, [("cilium/a", "1\n2"), ("cilium/b", ""), ("cilium/c", "x => y\n")]);
    let fenced = parse(b"# cilium-dbg kvstore get --recursive\n\n```\ncilium/a => 1\n\n```\n").unwrap();
    assert_eq!(fenced.pairs[0].value, b"1");
    let marked = parse("\u{feff}cilium/a => 1\n".as_bytes()).unwrap();
    assert_eq!(marked.pairs[0].key, "cilium/a");
}

#[test]
fn an_export_and_a_list_of_entries_name_different_revisions() {
    let export = r#"{"createSequence":4,"key":"cilium/cache/identities/v1/paris/id/70000","lastSequence":9,"lease":7,"modRevision":12,"value":"k8s:a=b;","version":1}"#;
    let list = r#"{"key":"cilium/cache/identities/v1/paris/id/70000","value":"azhzOmE9Yjs=","createRevision":4,"modRevision":9,"version":1,"sourceRevision":12,"cluster":"paris"}"#;
    let without = list.replace("\"sourceRevision\":12", "\"sourceRevision\":null");
    let revision = |text: &str| parse(text.as_bytes()).unwrap().pairs.remove(0);
    for (text, expected) in [(export, Some(12)), (list, Some(12)), (&*without, None)] {
        let pair = revision(text);
        assert_eq!((pair.revision, &*pair.value), (expected, &b"k8s:a=b;"[..]), "{text}");
    }
    assert_eq!((revision(export).lease, revision(list).lease), (Some(7), None));
    let partial = |text: &str| parse(text.as_bytes()).unwrap().is_partial;
    assert_eq!((partial(export), partial(list), partial(&format!("{list}\n{{\"meta\":{{}}}}\n"))), (false, true, false));
    let warnings = read_text(list, &DumpOptions::default()).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].ends_with("is incomplete: it ends before the last key"), "{warnings:?}");
}

#[test]
fn identities_and_addresses_get_the_cluster_that_the_dump_names() {
    const IDENTITY: &str = "cilium/state/identities/v1/id/70000 => k8s:a=b;\n";
    let cluster_of = |text: &str, options: &DumpOptions| {
        let dump = read_text(text, options).unwrap();
        dump.entries.keys().map(ToString::to_string).collect::<Vec<_>>()
    };
    let named = DumpOptions { cluster: ClusterName::parse("rome").ok(), time: None };
    for (text, options, expected) in [
        (format!("{IDENTITY}cilium/state/nodes/v1/paris/a => {{}}\n"), &DumpOptions::default(), vec!["paris/identity", "paris/node"]),
        (format!("{IDENTITY}cilium/cluster-config/paris => {{\"id\":1}}\n"), &DumpOptions::default(), vec!["paris/identity"]),
        (
            format!(
                "{IDENTITY}cilium/cluster-config/paris => {{}}\ncilium/cluster-config/tokyo => {{\"capabilities\":{{\"cached\":true}}}}\n"
            ),
            &DumpOptions::default(),
            vec!["paris/identity"],
        ),
        (IDENTITY.replace("a=b", "io.cilium.k8s.policy.cluster=oslo"), &DumpOptions::default(), vec!["oslo/identity"]),
        (IDENTITY.to_owned(), &named, vec!["rome/identity"]),
    ] {
        assert_eq!(cluster_of(&text, options), expected, "{text}");
    }
    let unnamed = refusal(read_text(IDENTITY, &DumpOptions::default()));
    assert!(unnamed.ends_with("does not name the cluster of its keys below cilium/state: give its name with --cluster-name"), "{unnamed}");
    let two = format!("{IDENTITY}cilium/state/nodes/v1/paris/a => {{}}\ncilium/state/nodes/v1/tokyo/a => {{}}\n");
    assert!(refusal(read_text(&two, &DumpOptions::default())).contains("several clusters below cilium/state (paris, tokyo)"));
}

#[test]
fn the_time_comes_from_the_option_before_the_heartbeat_and_the_file() {
    let config = "cilium/cluster-config/paris => {\"id\":1}\n";
    let text = &*format!("cilium/.heartbeat => 2026-01-02T03:04:05Z\n{config}");
    let given = DumpOptions { time: parse_time("2026-02-02T00:00:00Z"), cluster: None };
    for (text, options, from) in [
        (text, &given, DumpTimeSource::CommandLine),
        (text, &DumpOptions::default(), DumpTimeSource::Heartbeat),
        (config, &DumpOptions::default(), DumpTimeSource::File),
    ] {
        let dump = read_text(text, options).unwrap();
        assert_eq!(dump.source.time_from, from);
        let record = dump.clusters.values().next().unwrap();
        assert_eq!(record.last_contact, Some(dump.source.time), "{from}");
    }
}

#[test]
fn other_files_are_refused_with_the_cure() {
    for (text, reason) in [
        ("", "is no dump: give the output of"),
        ("hello\n", "is no dump: give the output of"),
        ("{\"a\":1}", "is no dump: give the output of"),
        ("{ hello", "is no dump: give the output of"),
        ("{\"items\":[],\"meta\":{}}", "cannot be parsed: it is one page of a list: request /v1/entries with"),
        ("\x1f\u{8b}", "is no dump"),
        ("{\"header\":{},\"kvs\":[{\"key\":1}]}", "cannot be parsed: invalid type: integer `1`"),
        ("{\"header\":{},\"kvs\":[{\"key\":\"%\"}]}", "the value of \"%\" is not base64"),
        ("{\"header\":{}}{\"header\":{}}", "after the JSON follows"),
        ("{\"header\":{},\"count\":0}", "has no nodes, services, identities or addresses"),
        ("cilium/other => 1\n", "has no nodes, services, identities or addresses"),
    ] {
        let refused = refusal(read_text(text, &DumpOptions::default()));
        assert!(refused.contains(reason), "{text:?}: {refused}");
    }
    assert!(refusal(read(Path::new("/nowhere/dump"))).starts_with("cannot read /nowhere/dump: "));
    let directory = tempfile::tempdir().unwrap();
    let compressed = directory.path().join("dump.gz");
    fs::write(&compressed, b"\x1f\x8b\x08").unwrap();
    assert!(refusal(read(&compressed)).ends_with("is compressed: unpack it with `gunzip` first"));
    fs::remove_file(compressed).unwrap();
    assert!(refusal(read(directory.path())).contains("has no file with the content of an etcd"));
    let whole = fs::read(fixture("cilium-sysdump-20260112-093215.zip")).unwrap();
    fs::write(directory.path().join("half.zip"), &whole[..whole.len() / 2]).unwrap();
    assert!(refusal(read(&directory.path().join("half.zip"))).contains("is a damaged archive: "));
}

/// Every prefix of a dump is read or refused, without a panic.
#[test]
fn truncated_dumps_are_read_or_refused() {
    for name in ["kvstore-tokyo.txt", "etcdctl-tokyo.json", "kvstore-kvstoremesh.json"] {
        let whole = fs::read(fixture(name)).unwrap();
        for length in (0..whole.len()).step_by(97) {
            match parse(&whole[..length]) {
                Ok(parsed) => drop(mesh::sort(parsed.pairs, None)),
                Err(FormError::Unrecognised | FormError::Malformed(_)) => {}
            }
        }
    }
}

/// Returns a directory with the fixture of a sysdump, unpacked.
fn unpacked_sysdump() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for UnpackedFile { name, bytes } in unpack(&fixture("cilium-sysdump-20260112-093215.zip"), u64::MAX).unwrap().files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    directory
}

#[test]
fn an_unpacked_sysdump_is_read_and_links_out_of_it_are_not_followed() {
    let directory = unpacked_sysdump();
    let count = || read(directory.path()).unwrap().entry_count();
    assert_eq!(count(), 10);
    let outside = tempfile::tempdir().unwrap();
    fs::copy(fixture("kvstore-tokyo.txt"), outside.path().join("kvstore-tokyo.txt")).unwrap();
    symlink(outside.path().join("kvstore-tokyo.txt"), directory.path().join("kvstore-link.txt")).unwrap();
    symlink(outside.path(), directory.path().join("link")).unwrap();
    assert_eq!(count(), 10);
}

/// A sysdump may have files with the names of files of a bundle.
#[test]
fn only_a_bundle_has_the_files_of_a_bundle() {
    let directory = unpacked_sysdump();
    fs::write(directory.path().join("about.json"), "{}").unwrap();
    fs::write(directory.path().join("clusters.json"), "not JSON").unwrap();
    let keys = r#"{"cilium/cache/identities/v1/tokyo/id/131073":{"Data":"azhzOmE9Yjs="}}"#;
    for name in ["kvstore-about.json", "kvstore-clusters.json"] {
        fs::write(directory.path().join(name), keys).unwrap();
    }
    let dump = read(directory.path()).unwrap();
    assert_eq!((dump.source.form, dump.entry_count(), dump.warnings.len()), ("cilium sysdump", 11, 0));
}

#[test]
fn of_equal_keys_in_several_files_the_newest_is_used() {
    let directory = tempfile::tempdir().unwrap();
    for (name, value, revision) in [("1", "azhzOmE9Yjs=", 11), ("2", "azhzOmE9Yzs=", 12), ("3", "azhzOmE9Yjs=", 10)] {
        let text = format!(r#"{{"cilium/cache/identities/v1/paris/id/70000":{{"Data":"{value}","ModRevision":{revision}}}}}"#);
        fs::write(directory.path().join(format!("kvstore-{name}.json")), text).unwrap();
    }
    let dump = read(directory.path()).unwrap();
    let values: Vec<_> = dump.entries.values().flatten().map(|entry| &*entry.value).collect();
    assert_eq!(values, [b"k8s:a=c;"]);
}

#[test]
fn links_in_a_tar_are_not_followed() {
    let outside = fixture("kvstore-tokyo.txt");
    let mut tar = tar::Builder::new(Vec::new());
    for (name, entry_type) in [("kvstore-a.txt", tar::EntryType::Symlink), ("kvstore-b.txt", tar::EntryType::Link)] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(entry_type);
        header.set_size(0);
        tar.append_link(&mut header, name, &outside).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("links.tar");
    fs::write(&path, tar.into_inner().unwrap()).unwrap();
    assert!(unpack(&path, u64::MAX).unwrap().files.is_empty());
    assert!(refusal(read(&path)).contains("has no file with the content of an etcd"));
}

#[test]
fn a_dump_is_unpacked_up_to_the_limit() {
    let sysdump = fixture("cilium-sysdump-20260112-093215.zip");
    let bytes: usize = unpack(&sysdump, u64::MAX).unwrap().files.iter().map(|file| file.bytes.len()).sum();
    let bytes = u64::try_from(bytes).unwrap();
    assert!(unpack(&sysdump, bytes).is_ok());
    assert!(refusal(unpack(&sysdump, bytes - 1)).contains(&format!("has more than {} bytes after unpacking", bytes - 1)));
    let directory = unpacked_sysdump();
    assert!(unpack(directory.path(), bytes).is_ok() && unpack(directory.path(), bytes - 1).is_err());
    assert!(unpack(&fixture("kvstore-paris.txt"), 10).is_err());
}

/// Writes a bundle with these files, as `meshkeep bundle` does.
fn bundle(files: &[(&str, &str)]) -> tempfile::NamedTempFile {
    let mut tar = tar::Builder::new(tempfile::NamedTempFile::new().unwrap());
    let about = ("about.json", r#"{"made":"2026-03-04T05:06:07Z","by":"meshkeep"}"#);
    for (name, text) in [about].iter().chain(files) {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, format!("meshkeep-bundle/{name}"), text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

#[test]
fn a_bundle_is_read_if_it_has_entries() {
    let line =
        |id: u32| format!("{{\"key\":\"cilium/cache/identities/v1/paris/id/{id}\",\"value\":\"azhzOmE9Yjs=\",\"sourceRevision\":12}}\n");
    let end = format!("{}{{\"meta\":{{}}}}\n", line(70_001));
    let whole = read(bundle(&[("entries-000001.ndjson", &line(70_000)), ("entries-000002.ndjson", &end)]).path()).unwrap();
    assert_eq!((whole.source.form, whole.source.time_from, whole.entry_count()), ("meshkeep bundle --entries", DumpTimeSource::Bundle, 2));
    assert_eq!(Some(whole.source.time), parse_time("2026-03-04T05:06:07Z"));
    assert_eq!(whole.warnings, Vec::<String>::new());
    let key = EntryKey::new(Kind::Identity, ClusterName::parse("paris").unwrap(), "70000");
    assert!(whole.entries.values().flatten().any(|entry| entry.key == key));
    let cut = read(bundle(&[("entries-000001.ndjson", &line(70_000))]).path()).unwrap();
    assert_eq!(cut.warnings.len(), 1, "{:?}", cut.warnings);
    let without = refusal(read(bundle(&[("status.json", "{}")]).path()));
    assert!(without.ends_with("is a bundle without entries: make one with `meshkeep bundle --entries`"), "{without}");
}
