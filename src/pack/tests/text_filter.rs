//! Tests of the Bloom filter of a chunk: it never excludes a chunk with a match.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{build, cluster, record};
use crate::model::{EntryKey, Kind};
use crate::pack::{Chunk, FieldTest, RowField, RowFilter, TextTest};

/// Returns whether a chunk may have an entry whose field passes a test.
fn may_have(chunk: &Chunk, field: RowField, test: TextTest) -> bool {
    chunk.may_have_match(&RowFilter(vec![(Kind::Ip, vec![FieldTest { fields: vec![field], test }])]))
}

#[test]
fn a_chunk_has_each_of_its_texts_and_few_others() {
    let mut random = StdRng::seed_from_u64(5);
    let (pods, namespaces) =
        (BTreeSet::from_iter((0..800_u32).map(|number| format!("cart-{}-{number:05x}", number % 7))), ["shop", "bank"]);
    let mut records: Vec<_> = pods
        .iter()
        .enumerate()
        .map(|(number, pod)| {
            let ip = format!("10.1.{}.{}", number / 250, number % 250);
            let value = format!(
                r#"{{"IP":"{ip}","HostIP":"172.18.0.{}","ID":70000,"Key":0,"K8sNamespace":"{}","K8sPodName":"{pod}"}}"#,
                number % 20,
                namespaces[number % 2]
            );
            record(EntryKey::new(Kind::Ip, cluster(0), ip), value.as_bytes(), &mut random)
        })
        .collect();
    records.sort_by(|one, other| one.key.cmp(&other.key));
    let chunks = build(records.iter());
    let [chunk] = &*chunks else { panic!("{} chunks", chunks.len()) };
    let pod = |text: &str| may_have(chunk, RowField::Pod, TextTest::Equals(vec![text.to_owned()]));
    let namespace = |text: &str| may_have(chunk, RowField::Namespace, TextTest::Equals(vec![text.to_owned()]));
    let host = |text: &str| may_have(chunk, RowField::HostIp, TextTest::IsAddress(vec![text.parse().unwrap()]));
    assert!(pods.iter().all(|text| pod(text)) && namespaces.into_iter().all(namespace));
    assert!((0..20).all(|number| host(&format!("172.18.0.{number}"))));
    let absent = (0..1_000).filter(|number| pod(&format!("web-1-{number:05x}x"))).count();
    assert!(absent < 100, "{absent} of 1,000 absent pods");
    let absent_hosts = (100..200).filter(|number| host(&format!("172.18.0.{number}"))).count();
    assert!(absent_hosts < 20, "{absent_hosts} of 100 absent hosts");
    assert_eq!([namespace("nobody"), host("fd00::1")], [false; 2]);
    // a part of a text is not looked up
    assert!(may_have(chunk, RowField::Pod, TextTest::Contains("nobody".to_owned())));
}
