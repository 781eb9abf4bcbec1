//! Tests of the layers, their order, and the rules between options.

use std::collections::BTreeMap;

use clap::Command;

use super::*;

/// Resolves settings from arguments, an environment and a config file with the content `file`.
/// `{file}` in the arguments is replaced with the path of that file.
fn resolve(arguments: &[&str], environment: &[(&str, &str)], file: &str) -> Result<Settings, String> {
    resolve_with_effective(arguments, environment, file).map(|(settings, _)| settings)
}

fn resolve_with_effective(arguments: &[&str], environment: &[(&str, &str)], file: &str) -> Result<(Settings, Vec<Setting>), String> {
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&path, file).unwrap();
    let file_name = path.path().to_str().unwrap();
    let arguments: Vec<OsString> =
        std::iter::once("serve").chain(arguments.iter().copied()).map(|text| text.replace("{file}", file_name).into()).collect();
    let environment: BTreeMap<_, _> = environment.iter().copied().collect();
    let command = Settings::augment_args(Command::new("serve"));
    Settings::resolve(&command, &arguments, |name| environment.get(name).map(|text| (*text).to_owned())).map_err(|error| error.to_string())
}

fn tcp(text: &str) -> ListenAddress {
    ListenAddress::Tcp(text.parse().unwrap())
}

#[test]
fn the_documented_defaults_apply_without_options() {
    let expected = Settings {
        config: None,
        clustermesh_config: "/var/lib/cilium/clustermesh".into(),
        data_dir: "/var/lib/meshkeep".into(),
        listen: vec![tcp("127.0.0.1:9870")],
        health_listen: None,
        etcd_listen: None,
        cluster_name: None,
        ignore_cluster: Vec::new(),
        cluster_id: ClusterId(0),
        local_etcd: None,
        legacy_clusters: vec![],
        allow_no_clusters: false,
        max_connected_clusters: MaxConnectedClusters::Clusters255,
        allowed_hosts: vec![],
        kvstore_options: vec![],
        tombstone_max_age: Duration::from_secs(24 * 3600),
        tombstone_max_count: 1_000_000,
        history: HistorySettings { mode: HistoryMode::On, age_max: Duration::from_secs(7 * 86_400), bytes_max: 1 << 30 },
        cache_ttl: Duration::ZERO,
        receivers: ReceiverSettings { on_problem: None, on_problem_format: WebhookFormat::Json, otlp_endpoint: None },
        metrics_detail: MetricsDetail::Default,
        memory: MemorySettings { cluster_max_keys: 2_000_000, cluster_max_bytes: 1 << 30, decoded_max_bytes: 256 << 20 },
        security: SecuritySettings::default(),
        log_format: LogFormat::Text,
        log_level: LogLevel::Info,
        check_config: false,
        end_with_stdin: false,
        timing: TimingSettings {
            cluster: ClusterTiming {
                legacy_wait: Duration::from_secs(180),
                legacy_quiet: Duration::from_secs(60),
                hold_margin: Duration::from_secs(30),
                heartbeat_silence: Duration::from_secs(120),
                heartbeat_silence_critical: Duration::from_secs(600),
                watch_silence: Duration::from_secs(55),
                backoff_min: Duration::from_millis(800),
                backoff_max: Duration::from_secs(30),
                too_large_wait: Duration::from_secs(300),
                unknown_prefix_interval: Duration::from_secs(300),
                verify_interval: Duration::from_secs(60),
                verify_round: Duration::from_secs(1_800),
                verify_values_interval: Duration::from_secs(86_400),
                remind_interval: crate::instruments::REMINDER_INTERVAL,
            },
            store_lock_wait: Duration::from_secs(30),
            config_rescan_interval: Duration::from_secs(60),
            progress_interval: Duration::from_secs(10),
            no_clusters_wait: Duration::from_secs(60),
        },
    };
    assert_eq!(resolve(&[], &[], ""), Ok(expected));
}

#[test]
fn flags_override_the_environment_and_both_override_the_file() {
    let file = "data-dir: /file\ncluster-id: 3\ncluster-name: file\nlisten: ['127.0.0.1:1', '127.0.0.1:2']\ninsecure: true\n\
                kvstore-opt:\n  etcd.qps: 5\n  etcd.limit: 9\nlog-level:\n";
    let environment = [
        ("MESHKEEP_CONFIG", ""),
        ("MESHKEEP_DATA_DIR", "/environment"),
        ("MESHKEEP_CLUSTER_NAME", "environment"),
        ("MESHKEEP_ALLOWED_HOST", "a.example, B.example"),
    ];
    let settings = resolve(&["--config={file}", "--data-dir", "/flag"], &environment, file).unwrap();
    let defaults = resolve(&[], &[], "").unwrap();
    let expected = Settings {
        config: settings.config.clone(),
        data_dir: "/flag".into(),
        cluster_name: ClusterName::parse("environment").ok(),
        cluster_id: ClusterId(3),
        listen: vec![tcp("127.0.0.1:1"), tcp("127.0.0.1:2")],
        allowed_hosts: vec!["a.example".into(), "b.example".into()],
        kvstore_options: vec![KvstoreOption::Qps(5), KvstoreOption::Limit(9)],
        security: SecuritySettings { insecure: true, ..SecuritySettings::default() },
        ..defaults
    };
    assert_eq!(settings, expected);
    let settings = resolve(&["--config={file}", "--listen=127.0.0.1:3"], &[("MESHKEEP_LISTEN", "127.0.0.1:4")], file).unwrap();
    assert_eq!(settings.listen, [tcp("127.0.0.1:3")], "a repeatable option is replaced as a whole");
    let settings = resolve(&["--config={file}"], &[("MESHKEEP_INSECURE", "false")], "insecure: true").unwrap();
    assert!(!settings.security.insecure, "the environment can switch off what the file switches on");
}

#[test]
fn errors_name_the_flag_and_the_origin_of_a_bad_value() {
    type BadValueCase = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static str, &'static [&'static str]);
    let cases: [BadValueCase; 13] = [
        (&["--cluster-id=x"], &[], "", &["'x'", "--cluster-id", "0 to 511"]),
        (
            &[],
            &[("MESHKEEP_CLUSTER_ID", "512")],
            "",
            &["environment variable MESHKEEP_CLUSTER_ID has an invalid value for --cluster-id <ID>: must be a number from 0 to 511"],
        ),
        (&["--config={file}"], &[], "cluster-name: Paris", &["key cluster-name of /", "--cluster-name <NAME>: must be 1 to 32 characters"]),
        (&["--config={file}"], &[], "cluster_name: paris", &["config file /", "\"cluster_name\", did you mean cluster-name?"]),
        (&["--config={file}"], &[], "config: other", &["\"config\""]),
        (&["--config={file}"], &[], "- a list", &["config file /"]),
        (&["--config={file}"], &[], "data-dir: {a: {b: c}}", &["data-dir must be a value"]),
        (&["--config={file}"], &[], "data-dir: [a, b]", &["data-dir accepts one value"]),
        (&["--config={file}"], &[], "data-dir: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", &["nested deeper than 32"]),
        (&["--config={file}"], &[], "data-dir: [", &["not YAML: check line 2, column 1"]),
        (&["--config=/dev/zero"], &[], "", &["/dev/zero", "not a regular file"]),
        (&["--config=/does/not/exist"], &[], "", &["/does/not/exist", "No such file"]),
        (&[], &[("MESHKEEP_INSECURE", "perhaps")], "", &["MESHKEEP_INSECURE must be true or false"]),
    ];
    for (arguments, environment, file, named) in cases {
        let message = resolve(arguments, environment, file).unwrap_err();
        for part in named {
            assert!(message.contains(part), "{part:?} is not in: {message}");
        }
    }
}

#[test]
fn values_of_environment_and_file_are_never_shown() {
    /// A value that every option rejects, except for paths.
    const SECRET: &str = "Hunter2=hunter2 ,";
    let command = Settings::augment_args(Command::new("serve"));
    let mut refused = 0;
    for long in command.get_arguments().filter_map(|option| option.get_long()).filter(|long| *long != layers::CONFIG_OPTION) {
        let variable = format!("MESHKEEP_{}", long.to_uppercase().replace('-', "_"));
        let file = format!("{long}: '{SECRET}'\n");
        for answer in [resolve(&[], &[(&variable, SECRET)], ""), resolve(&["--config={file}"], &[], &file)] {
            let Err(message) = answer else { continue };
            refused += 1;
            assert!(!message.to_lowercase().contains("hunter2"), "{long}: {message}");
            assert!(message.contains(long) || message.contains(&variable), "{long}: {message}");
        }
    }
    assert!(refused >= 2 * 15, "{refused}");
}

/// Returns a value of the type that a schema has, as YAML.
fn value_of_type(schema: &serde_json::Value) -> String {
    let schema = schema.get("anyOf").map_or(schema, |types| &types[0]);
    match (&schema["enum"][0], &schema["type"]) {
        (serde_json::Value::String(first), _) => first.clone(),
        (_, kind) if kind == "boolean" => "true".to_owned(),
        (_, kind) if kind == "string" => "text".to_owned(),
        _ => "1".to_owned(),
    }
}

#[test]
fn the_schema_has_the_keys_and_types_of_the_config_file() {
    let serve = Settings::augment_args(Command::new("serve"));
    let schema = config_schema(&serve, &Command::new("reflect"));
    let properties = schema["properties"].as_object().unwrap();
    let shown = options(&serve).filter(|option| !option.is_hide_set()).filter_map(|option| option.get_long());
    assert_eq!(properties.len(), shown.count() - 1, "all but --config");
    for (key, property) in properties {
        assert!(!property["description"].as_str().unwrap().is_empty(), "{key}");
        let message = resolve(&["--config={file}"], &[], &format!("{key}: {}", value_of_type(property))).err().unwrap_or_default();
        assert!(!message.contains("there is no key") && !message.contains("must be a value"), "{key}: {message}");
    }
    assert_eq!(properties["cluster-id"]["default"], 0);
    assert_eq!(properties["cache-ttl"]["type"], serde_json::json!(["string", "integer"]));
    assert_eq!(properties["log-format"]["enum"], serde_json::json!(["text", "json"]));
    assert_eq!(properties["kvstore-opt"]["anyOf"].as_array().unwrap().len(), 3, "a value, a list or a map");
    let reflect = Command::new("reflect").arg(clap::Arg::new("to").long("to").help("Target"));
    assert_eq!(config_schema(&serve, &reflect)["properties"]["to"]["description"], "Only for meshkeep reflect. Target");
}

#[test]
fn origins_are_accepted_as_browsers_send_them() {
    let accepts = |origin: &str| resolve(&[&format!("--cors-origin={origin}"), &format!("--frame-ancestor={origin}")], &[], "").is_ok();
    for origin in ["https://portal.example", "http://localhost:3000", "https://[fd00::1]:8443", "http://192.0.2.1"] {
        assert!(accepts(origin), "{origin}");
    }
    let refused = [
        "*",
        "null",
        "portal.example",
        "https://*.example",
        "https://Portal.example",
        "https://portal.example/",
        "https://portal.example/path",
        "https://portal.example:443",
        "http://portal.example:80",
        "https://user@portal.example",
        "https://portal.example; script-src *",
        "ftp://portal.example",
        "https://",
    ];
    for origin in refused {
        assert!(!accepts(origin), "{origin}");
    }
}

#[test]
fn contradicting_options_are_refused() {
    let cases: [(&[&str], &str); 15] = [
        (&["--view-token-file=v"], "--view-token-file needs --token-file"),
        (&["--cluster-id=300"], "--cluster-id 300"),
        (&["--backoff-min=1m"], "--backoff-min"),
        (&["--on-problem-format=xml"], "must be json, alertmanager or cloudevents"),
        (&["--health-listen=127.0.0.1:9870"], "--listen 127.0.0.1:9870 and --health-listen 127.0.0.1:9870 need the same port"),
        (&["--health-listen=:9879", "--etcd-listen=127.0.0.1:9879"], "--health-listen [::]:9879 and --etcd-listen 127.0.0.1:9879"),
        (&["--listen=unix:///run/a", "--health-listen=unix:///run/a"], "port or socket"),
        (&["--local-etcd=/etc/own"], "--local-etcd needs --cluster-name"),
        (&["--tls-cert=c"], "--tls-key"),
        (&["--tls-key=k"], "--tls-cert"),
        (&["--client-ca=c"], "--tls-cert"),
        (&["--listen=127.0.0.1:1", "--listen=:2"], "--listen [::]:2"),
        (&["--listen=0.0.0.0:1", "--tls-cert=c", "--tls-key=k"], "--token-file or --client-ca"),
        (&["--etcd-listen=:2379"], "other machines can reach --etcd-listen [::]:2379"),
        (&["--etcd-listen=127.0.0.1:2379", "--token-file=t"], "--etcd-listen does not check the token"),
    ];
    for (arguments, named) in cases {
        let message = resolve(arguments, &[], "").unwrap_err();
        assert!(message.contains(named), "{named:?} is not in: {message}");
    }
    let fine: [&[&str]; 10] = [
        &["--health-listen=:9879"],
        &["--listen=127.0.0.1:0", "--health-listen=127.0.0.1:0", "--etcd-listen=127.0.0.1:0"],
        &["--local-etcd=/etc/own", "--cluster-name=own"],
        &["--cluster-id=300", "--max-connected-clusters=511"],
        &["--listen=0.0.0.0:1", "--insecure"],
        &["--listen=0.0.0.0:1", "--tls-cert=c", "--tls-key=k", "--token-file=t"],
        &["--listen=0.0.0.0:1", "--tls-cert=c", "--tls-key=k", "--client-ca=a"],
        &["--listen=unix:///run/m.sock", "--token-file=t"],
        &["--etcd-listen=127.0.0.1:2379"],
        &["--etcd-listen=:2379", "--tls-cert=c", "--tls-key=k", "--client-ca=a", "--token-file=t"],
    ];
    for arguments in fine {
        assert_eq!(resolve(arguments, &[], "").map(drop), Ok(()), "{arguments:?}");
    }
}

#[test]
fn each_effective_setting_has_its_value_and_origin() {
    let file = "cluster-id: 3\ninsecure: true\nlisten: ['127.0.0.1:1', '127.0.0.1:2']\nkvstore-opt: {etcd.qps: 5}\nlog-level: warn\n";
    let environment = [("MESHKEEP_CLUSTER_NAME", "paris"), ("MESHKEEP_LOG_LEVEL", "debug"), ("RUST_LOG", "meshkeep=trace")];
    let (_, effective) = resolve_with_effective(&["--config={file}", "--data-dir", "/flag"], &environment, file).unwrap();
    let find = |name: &str| {
        let found: Vec<&Setting> = effective.iter().filter(|setting| setting.name == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        assert!(!found[0].description.is_empty(), "{name}");
        (found[0].values.join(","), found[0].source.api_name(), found[0].origin.clone().unwrap_or_default())
    };
    let is = |value: &str, source: &'static str, origin: &str| (value.to_owned(), source, origin.to_owned());
    assert_eq!(find("data-dir"), is("/flag", "flag", "--data-dir"));
    assert_eq!(find("cluster-name"), is("paris", "environment", "environment variable MESHKEEP_CLUSTER_NAME"));
    assert_eq!(find("log-level"), is("debug", "environment", "environment variable MESHKEEP_LOG_LEVEL"));
    assert_eq!(find("RUST_LOG"), is("meshkeep=trace", "environment", "environment variable RUST_LOG"));
    let (path, ..) = find("config");
    assert_eq!(find("listen"), is("127.0.0.1:1,127.0.0.1:2", "file", &format!("key listen of {path}")));
    assert_eq!(find("insecure"), is("true", "file", &format!("key insecure of {path}")));
    assert_eq!(find("kvstore-opt.etcd.qps"), is("5", "file", &format!("key kvstore-opt of {path}")));
    assert_eq!(find("kvstore-opt.etcd.maxInflight"), is("5", "default", ""));
    assert_eq!(find("kvstore-opt.etcd.keepaliveTimeout"), is("25s", "default", ""));
    assert_eq!(find("check-config"), is("false", "default", ""));
    assert_eq!(find("token-file"), is("", "default", ""));
    assert_eq!(find("cache-ttl"), is("0", "default", ""));
    let command = Settings::augment_args(Command::new("serve"));
    let options = command.get_arguments().filter(|option| option.get_long().is_some_and(|long| long != "help"));
    assert_eq!(effective.len(), options.count() - 1 + 6 + 1, "every option is listed, kvstore-opt as six, and RUST_LOG");
}
