//! Texts from a remote cluster on the page: control characters, right-to-left names, error
//! messages, and services that are too large.

use serde_json::json;

use super::browser::Page;
use crate::harness::etcd::Etcd;
use crate::harness::hostile::{HOSTILE_TEXT, HostileEtcd, Mode, is_safe_to_display};
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, publish, put_leased};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::slices::encode_large_slice;

/// A namespace in a right-to-left script.
const HEBREW: &str = "\u{5e9}\u{5dc}\u{5d5}\u{5dd}";

/// Returns the key and value of a pod's ipcache entry.
fn ip_entry(ip: &str, namespace: &str, pod: &str) -> (String, Vec<u8>) {
    let value = json!({ "IP": ip, "Mask": null, "HostIP": "172.18.1.1", "ID": 65_700, "Key": 0, "Metadata": "", "K8sNamespace": namespace, "K8sPodName": pod });
    (format!("cilium/state/ip/v1/default/{ip}"), value.to_string().into_bytes())
}

/// Starts a mesh of one generated cluster, to which `entries` are added.
async fn mesh(entries: Vec<(String, Vec<u8>)>) -> (Etcd, Home, Meshkeep) {
    let etcd = Etcd::start().await;
    publish(&etcd, Form::State, &[MeshCluster::generate(1, EVERY_KIND)], "2026-01-12T09:31:07Z").await;
    put_leased(&etcd, entries).await;
    let mut home = Home::new();
    home.write_cluster("c01", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("c01", "live").await;
    (etcd, home, meshkeep)
}

async fn assert_escaped(page: &Page) {
    page.wait_for_text(&["\\u001b[31m", "\\u009b2J", "\\u202e", "\\u2066"]).await;
    let text = page.text().await;
    assert!(is_safe_to_display(&text), "{text:?}");
}

#[tokio::test]
async fn control_characters_are_shown_as_escapes() {
    let label = format!("k8s:app={HOSTILE_TEXT};k8s:io.cilium.k8s.policy.cluster=c01;");
    let identity = ("cilium/state/identities/v1/id/65700".to_owned(), label.into_bytes());
    let (etcd, home, meshkeep) = mesh(vec![ip_entry("10.1.99.1", "shop", HOSTILE_TEXT), identity]).await;
    let page = Page::open(meshkeep.url()).await;
    for part in ["explain/10.1.99.1", "find/10.1.99.0%2F24", "find/65700"] {
        page.go_to(&format!("#/{part}")).await;
        assert_escaped(&page).await;
        page.save_screenshot(&format!("hostile-{}", part.replace(['/', '%'], "-"))).await;
    }
    // in the suggestions while typing, and in the list of changes
    page.press(&["/"]).await;
    page.type_text("10.1.99.1").await;
    page.wait_for("the suggestion", "return document.querySelector('#found')?.innerText.includes('u001b')").await;
    page.press(&["Escape"]).await;
    page.go_to("#/changes?kind=ipcache").await;
    page.wait_for_text(&["The changes of the last ten minutes are not known"]).await;
    put_leased(&etcd, [ip_entry("10.1.99.3", HOSTILE_TEXT, HOSTILE_TEXT)]).await;
    page.wait_for("a line", "return document.querySelectorAll('.change').length === 1").await;
    assert!(is_safe_to_display(&page.text().await));
    // the error text comes from the remote
    let hostile = HostileEtcd::start(Mode::ErrorText).await;
    home.write_cluster("c02", &hostile.client_file());
    page.go_to("#/mesh/c02").await;
    assert_escaped(&page).await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

/// Right-to-left names are isolated. Otherwise digits after a namespace would appear to its left,
/// as if they were part of it.
#[tokio::test]
async fn right_to_left_names_do_not_reorder_their_neighbours() {
    let (_etcd, _home, meshkeep) = mesh(vec![ip_entry("10.1.99.2", HEBREW, "123")]).await;
    let page = Page::open(meshkeep.url()).await;
    let in_order = |selector: &str, pieces: &[&str]| {
        format!(
            "const all = [...document.querySelectorAll({})].filter((one) => one.textContent.includes({hebrew}));
            const left = (within, text) => {{
              const walker = document.createTreeWalker(within, NodeFilter.SHOW_TEXT);
              for (let node = walker.nextNode(); node; node = walker.nextNode()) {{
                const start = node.data.indexOf(text);
                if (start < 0) continue;
                const range = document.createRange();
                range.setStart(node, start);
                range.setEnd(node, start + text.length);
                return range.getBoundingClientRect().left;
              }}
              return NaN;
            }};
            if (all.length === 0) return false;
            const offsets = {}.map((piece) => left(all.at(-1), piece));
            return offsets.every((offset, index) => index === 0 || offset > offsets[index - 1]) ? 'in order' : JSON.stringify(offsets);",
            json!(selector),
            json!(pieces),
            hebrew = json!(HEBREW),
        )
    };
    page.go_to("#/find/10.1.99.0%2F24").await;
    let order = page.wait_for("the row", &in_order("td", &[HEBREW, "/", "123"])).await;
    assert_eq!(order, json!("in order"));
    page.press(&["/"]).await;
    page.type_text("10.1.99.2").await;
    let order = page.wait_for("the suggestion", &in_order(".found-note", &[HEBREW, "/", "123", "c01", "identity"])).await;
    assert_eq!(order, json!("in order"));
    page.save_screenshot("right-to-left").await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_page_reports_a_service_that_is_too_large_to_decode() {
    let slices = (0..4).map(|number| {
        let name = format!("cart-{number}");
        (format!("cilium/state/endpointslices/v1/c01/zoo/{name}"), encode_large_slice("cart", "c01", 1, "zoo", &name, 15 << 20))
    });
    let (_etcd, _home, meshkeep) = mesh(slices.collect()).await;
    let page = Page::open(meshkeep.url()).await;
    page.go_to("#/services/zoo/cart").await;
    page.wait_for_text(&[
        "too large to show",
        "Its clusters and backends are not shown",
        "--decoded-max-bytes",
        "cilium/cache/endpointslices/v1/c01/zoo/cart-0",
    ])
    .await;
    page.assert_readable("too large").await;
    page.save_screenshot("too-large").await;
    page.go_to("#/problems").await;
    page.wait_for_text(&["service too large", "zoo/cart"]).await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}
