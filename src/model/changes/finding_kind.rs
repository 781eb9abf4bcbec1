//! Kinds of findings. One table has the name, the severity, the documentation and the advice of
//! each kind.

use crate::model::api_enum::api_enum;

api_enum! {
    /// `critical`: something is not served, or soon will not be. `warning`: something is served
    /// that is probably not intended. `info`: it resolves by itself.
    pub enum Severity {
        /// Data is not served, or will soon not be.
        Critical = "critical",
        /// Data is served that is probably not intended.
        Warning = "warning",
        /// The finding resolves itself, or needs no action today.
        Info = "info",
    }
}

/// Defines [`FindingKind`].
///
/// A row has the name in the API, the lowest severity, the section below `docs/` that describes the
/// kind, and the advice for most states. Words in braces are replaced.
macro_rules! finding_kinds {
    ($($kind:ident = $name:literal, $severity:ident, $section:literal, $advice:expr;)+) => {
        api_enum! {
            /// Kind of a finding.
            pub enum FindingKind { $(#[doc = concat!("See docs/", $section, ".")] $kind = $name),+ }
        }

        impl FindingKind {
            /// Returns the lowest severity of the kind.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$kind => Severity::$severity),+ }
            }

            /// Returns the advice for most states. `{subject}` stands for the finding's subject.
            /// The code that makes the finding replaces all other words in braces.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$kind => $advice),+ }
            }

            /// Returns the section of the documentation: a page below `docs/` and an anchor.
            #[cfg(test)]
            const fn section(self) -> &'static str {
                match self { $(Self::$kind => $section),+ }
            }
        }
    };
}

finding_kinds! {
    CertificateExpiring = "certificateExpiring", Warning, "operate/alerts.md#meshkeepservercertificateexpiring",
        "renew it and replace the file that the client file of {subject} names: the next connection uses it";
    ClusterConfigLost = "clusterConfigLost", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "check that its clustermesh-apiserver or KVStoreMesh is running";
    ClusterConfigMissing = "clusterConfigMissing", Critical, "operate/alerts.md#meshkeepclusternotlive",
        "check that the clustermesh-apiserver of {subject} has written the cluster config, and that the endpoints are those of {subject}; if its Cilium is too old to write a cluster config, use --legacy-clusters {subject}";
    ClusterConfigRefused = "clusterConfigRefused", Critical, "operate/alerts.md#meshkeepproblemscritical",
        "check what wrote cilium/cluster-config/{subject} (/v1/rejected has its value)";
    ClusterFileInvalid = "clusterFileInvalid", Critical, "operate/alerts.md#meshkeepproblemscritical",
        "correct the file: meshkeep reads it again when it changes";
    ClusterFileMisspelt = "clusterFileMisspelt", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "correct the key: meshkeep reads the file again when it changes";
    ClusterStuck = "clusterStuck", Warning, "operate/alerts.md#meshkeepclusternotlive",
        "run `meshkeep doctor`, which tests each step of the connection";
    ClusterTooLarge = "clusterTooLarge", Critical, "operate/alerts.md#meshkeepclustertoolarge",
        "find out what fills its etcd, or raise --cluster-max-keys or --cluster-max-bytes";
    ClusterUnreachable = "clusterUnreachable", Critical, "operate/alerts.md#meshkeepclusternotlive",
        "run `meshkeep doctor`, which tests each step of the connection; meshkeep serves the last known state";
    ClusterUnreadable = "clusterUnreadable", Critical, "operate/alerts.md#meshkeepclusternotlive",
        "run `meshkeep doctor`, which shows what the user may read and what is missing; meshkeep serves the last known state";
    DanglingHostIp = "danglingHostIP", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "check whether the node was removed, or its agent does not announce it";
    DanglingIdentity = "danglingIdentity", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "check whether its operator deleted an identity that is still in use";
    DirectoryUnreadable = "directoryUnreadable", Critical, "operate/alerts.md#meshkeepproblemscritical",
        "check that --clustermesh-config is the right directory and that meshkeep may read it";
    DuplicateAddress = "duplicateAddress", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "give the clusters address ranges that do not overlap";
    DuplicateClusterId = "duplicateClusterID", Critical, "operate/alerts.md#meshkeepproblemscritical",
        "give each cluster of the mesh its own id";
    ExportConflict = "exportConflict", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "make the exported services equal in all clusters; /v1/global-services/{subject} lists every conflict";
    FindingsOmitted = "findingsOmitted", Info, "use/api/findings.md#in-the-change-stream",
        "resolve the findings in the stream; /v1/problems lists all";
    HeldEntries = "heldEntries", Info, "use/holds.md#when-a-hold-ends",
        "wait until its KVStoreMesh writes or deletes them; see docs/use/holds.md";
    HistoryLosses = "historyLosses", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "check the disk of --data-dir; answers about these periods say that they are incomplete, and the segments are removed when they are too old; to resolve the finding earlier, stop meshkeep and remove their files";
    HistoryUnwritable = "historyUnwritable", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "free space on the disk of --data-dir, or find out why its history/ cannot be written; the mirror is not affected";
    IdentityOutOfRange = "identityOutOfRange", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "check whether the cluster's id was changed while it was running";
    LogGap = "logGap", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "free space on the disk of --data-dir, or find out why its log/ cannot be written";
    MirrorDiverged = "mirrorDiverged", Critical, "operate/alerts.md#meshkeepproblemscritical",
        "meshkeep lists the keys again, which repairs its copy; report the keys to meshkeep's maintainers with the version of the etcd and of any proxy in front of it, and run `meshkeep verify {subject}`";
    NoClusters = "noClusters", Critical, "operate/alerts.md#meshkeepnoclusters",
        "check that --clustermesh-config is the right directory, and that the Secret mounted there has the right name and namespace and a file for each cluster; if no cluster is expected yet, start meshkeep with --allow-no-clusters";
    OverlappingNodePodCidr = "overlappingNodePodCIDR", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "give each node its own ranges; with ENI, Azure or multi-pool IPAM, some versions of Cilium announce wrong pod CIDRs (cilium/cilium#46179): upgrade them";
    OverlappingPodCidr = "overlappingPodCIDR", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "give the clusters pod ranges that do not overlap; with ENI, Azure or multi-pool IPAM, some versions of Cilium announce wrong pod CIDRs (cilium/cilium#46179): upgrade them";
    ProgressUnanswered = "progressUnanswered", Info, "use/api/findings.md#kinds",
        "check whether a proxy in between buffers streams; connect to etcd directly, or make the proxy forward gRPC without buffering";
    RejectedValues = "rejectedValues", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "/v1/rejected?cluster={subject} lists them with the reasons; check what wrote them";
    RevisionWentBack = "revisionWentBack", Warning, "operate/alerts.md#meshkeepproblemswarning",
        "give each etcd its own address, and restart agents after a restore";
    ServiceTooLarge = "serviceTooLarge", Critical, "operate/alerts.md#meshkeepproblemscritical",
        "check what writes the endpoint slices of {cluster} (the first is {key}); if they are intended, raise --decoded-max-bytes";
    SourceLost = "sourceLost", Warning, "operate/alerts.md#meshkeepclustersourcelost",
        "check that the KVStoreMesh of {subject}, or its clustermesh-apiserver, is running";
    StaleFile = "staleFile", Warning, "operate/alerts.md#meshkeepstalefile",
        "correct the file: meshkeep reads it again when it changes";
    StoreLosses = "storeLosses", Warning, "operate/alerts.md#meshkeepstorelosses",
        "meshkeep reads the missing data from the remote clusters again, and the next start resolves the finding; check the disk of --data-dir, and remove the files that were set aside when you no longer need them";
    StoreUnwritable = "storeUnwritable", Critical, "operate/alerts.md#meshkeepstorenotwriting",
        "free space on the disk of --data-dir, or find out why it cannot be written; meshkeep tries again every second";
    TargetUnwritable = "targetUnwritable", Critical, "operate/alerts.md#meshkeepproblemscritical",
        "check that the etcd of the target runs and has space, and that the user of the client file may read and write below cilium/: meshkeep tries again until it succeeds";
    WriterSilent = "writerSilent", Warning, "operate/alerts.md#meshkeepproblemscritical",
        "check that the clustermesh-apiserver (or KVStoreMesh) of {subject} runs, and that it can write to its etcd";
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{FindingKind, Severity};

    fn page(name: &str) -> String {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
    }

    #[test]
    fn kinds_are_sorted_by_name_and_severities_by_urgency() {
        assert!(FindingKind::ALL.map(FindingKind::api_name).is_sorted());
        assert!(Severity::ALL.is_sorted());
    }

    #[test]
    fn every_kind_has_a_row_and_a_section_in_the_documentation() {
        let findings = page("use/api/findings.md");
        for kind in FindingKind::ALL {
            let row = format!("| `{kind}` | {}", kind.severity());
            assert!(findings.lines().any(|line| line.starts_with(&row)), "use/api/findings.md has no row {row}");
            let (name, anchor) = kind.section().split_once('#').unwrap();
            let page = page(name);
            let mut headings = page.lines().filter_map(|line| line.strip_prefix("## "));
            assert!(headings.any(|heading| heading.to_lowercase().replace(' ', "-") == anchor), "{name} has no section {anchor}");
        }
    }
}
