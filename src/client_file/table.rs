//! Tests with client files of every form, and the results of Cilium's and etcd's own readers
//! (`tests/data/client_files.json`, written by `tests/clients/go-cilium/readers`).

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use cilium_kvstore::Credentials;
use serde_json::{Value, json};

use super::ClientFile;

fn table() -> Vec<Value> {
    serde_json::from_str(include_str!("../../tests/data/client_files.json")).unwrap()
}

/// Converts a result in the table into the result that meshkeep must have: a login needs a name and
/// a password, and unreachable addresses are omitted.
fn expected(seen: &Value) -> Value {
    let mut seen = seen.clone();
    let fields = seen.as_object_mut().unwrap();
    fields.remove("isClientFile");
    if !(fields.contains_key("username") && fields.contains_key("password")) {
        fields.remove("username");
        fields.remove("password");
    }
    for (_, ips) in fields.get_mut("hostAliases").and_then(Value::as_object_mut).into_iter().flatten() {
        ips.as_array_mut().unwrap().retain(|ip| ip.as_str().is_some_and(|ip| !ip.is_empty() && !ip.contains('%')));
    }
    seen
}

fn parsed(content: &[u8]) -> Value {
    let Ok(ClientFile { config, .. }) = ClientFile::parse(content) else { return json!({"refused": true}) };
    let mut seen = json!({"refused": false});
    let certificate = config.client_certificate.as_ref().map(|pair| &pair.certificate_file);
    if let Some(awaited) = certificate.or(config.trusted_ca_file.as_ref()).filter(|_| !config.insecure_transport) {
        seen["awaits"] = json!(awaited);
        return seen;
    }
    seen["endpoints"] = config.endpoints().iter().map(ToString::to_string).collect();
    if let Some(Credentials { username, password }) = &config.credentials {
        (seen["username"], seen["password"]) = (json!(username), json!(password));
    }
    if config.insecure_transport {
        seen["insecureTransport"] = json!(true);
    }
    if config.insecure_skip_tls_verify {
        seen["insecureSkipTlsVerify"] = json!(true);
    }
    let aliases: BTreeMap<&str, Vec<String>> =
        config.host_aliases.iter().map(|(name, ips)| (name, ips.iter().map(ToString::to_string).collect())).collect();
    if !aliases.is_empty() {
        seen["hostAliases"] = json!(aliases);
    }
    seen
}

#[test]
fn every_sample_is_read_as_agents_read_it() {
    let mut differences = Vec::new();
    // files that agents skip are not client files for meshkeep either
    for row in table().iter().filter(|row| row["seen"]["isClientFile"] == true) {
        let content = row
            .get("bytes")
            .map_or_else(|| row["text"].as_str().unwrap().as_bytes().to_vec(), |bytes| BASE64.decode(bytes.as_str().unwrap()).unwrap());
        let expected = expected(&row["seen"]);
        let parsed = parsed(&content);
        if parsed != expected {
            differences.push(format!("{}: {parsed}, agents: {expected}", row["name"]));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
