//! What the change stream takes, as a stream and as single answers: one list of filters for both.

use serde::Deserialize;
use utoipa::IntoParams;

use super::{address, cidr, clusters, exact, kind, labels, scope};
use crate::api::dto::meta::Terms;
use crate::api::problem::Problem;
use crate::handle::Filter;

/// What both forms of the change stream take beside their filters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamParts<'a> {
    pub(crate) snapshot: bool,
    pub(crate) after: Option<&'a str>,
    pub(crate) on_expired: OnExpired,
    pub(crate) terms: Terms,
}

/// What a position that can no longer be served leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnExpired {
    /// A `reset` event.
    Reset,
    /// 410.
    Fail,
}

impl OnExpired {
    fn parse(text: Option<&str>) -> Result<Self, Problem> {
        match text {
            None | Some("reset") => Ok(Self::Reset),
            Some("fail") => Ok(Self::Fail),
            Some(other) => Err(Problem::parameter("onExpired", format!("{other:?} is neither reset nor fail"))),
        }
    }
}

/// The parameters of a form of the change stream.
pub(crate) trait StreamQuery {
    /// The part that both have.
    fn parts(&self) -> Result<StreamParts<'_>, Problem>;

    /// What the stream is about.
    fn filter(&self) -> Result<Filter, Problem>;
}

macro_rules! stream_query {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Deserialize, IntoParams)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub(crate) struct $name {
            /// Only of this kind (`node`, `service`, `identity`, `ipcache`, `serviceExport`, `endpointSlice`, `cluster`, `problem`); may be repeated.
            /// Problems are told only where they are asked for.
            #[serde(default)]
            pub(crate) kind: Vec<String>,
            /// Only of this cluster; may be repeated.
            #[serde(default)]
            pub(crate) cluster: Vec<String>,
            /// Only objects whose labels match, in kubectl's syntax.
            pub(crate) label_selector: Option<String>,
            /// One requirement of the same syntax; may be repeated, all must hold.
            #[serde(default)]
            pub(crate) label: Vec<String>,
            /// Only in this namespace: services, service exports, endpoint slices, and ipcache entries of its pods.
            pub(crate) namespace: Option<String>,
            /// Only nodes, services, service exports and endpoint slices of this name.
            pub(crate) name: Option<String>,
            /// Only services that are (or are not) shared.
            pub(crate) shared: Option<bool>,
            /// Only nodes that have this address.
            pub(crate) ip: Option<String>,
            /// Only identities of this scope: `global`, `local`, `remoteNode` or `unknown`.
            pub(crate) scope: Option<String>,
            /// Only ipcache entries that lie inside this CIDR.
            pub(crate) cidr: Option<String>,
            /// Only ipcache entries of this numeric identity.
            pub(crate) identity: Option<u32>,
            /// Only ipcache entries with this host address (not a node's name: that would need another object).
            pub(crate) node: Option<String>,
            /// Only ipcache entries of the pod of this name.
            pub(crate) pod: Option<String>,
            /// Begin with everything that matches.
            pub(crate) snapshot: Option<bool>,
            $($(#[$field_meta])* pub(crate) $field: $type,)*
            /// `reset` (as if not given) or `fail`: what to do with a position that can no longer be served, a `reset` event or 410.
            pub(crate) on_expired: Option<String>,
            /// Answer 503 instead of beginning with anything older than so many seconds.
            pub(crate) max_age: Option<u32>,
            /// `ignore`: clusters that were never read do not count for `maxAge`.
            pub(crate) never_read: Option<String>,
        }

        impl StreamQuery for $name {
            fn parts(&self) -> Result<StreamParts<'_>, Problem> {
                Ok(StreamParts {
                    snapshot: self.snapshot == Some(true),
                    after: self.after.as_deref(),
                    on_expired: OnExpired::parse(self.on_expired.as_deref())?,
                    terms: Terms::read(self.max_age, self.never_read.as_deref(), None)?,
                })
            }

            fn filter(&self) -> Result<Filter, Problem> {
                Ok(Filter {
                    kinds: self.kind.iter().map(|name| kind(name)).collect::<Result<_, _>>()?,
                    clusters: clusters(&self.cluster)?,
                    namespace: exact("namespace", self.namespace.as_deref())?,
                    name: exact("name", self.name.as_deref())?,
                    labels: labels(self.label_selector.as_deref(), &self.label)?,
                    shared: self.shared,
                    ip: address("ip", self.ip.as_deref())?,
                    scope: scope(self.scope.as_deref())?,
                    cidr: cidr(self.cidr.as_deref())?,
                    identity: self.identity,
                    hosts: self.node.as_deref().map(host).transpose()?,
                    pod: exact("pod", self.pod.as_deref())?,
                })
            }
        }
    };
}

stream_query! {
    /// The change stream: filters of the lists that look at the object alone, and where to begin.
    EventsQuery {
        /// Begin after this position. The `Last-Event-ID` header wins over it, and it wins over `snapshot`.
        after: Option<String>,
        /// Where only backends of a service changed, send a `patch` that applies to the object sent before, not the whole service. Only
        /// live, and only to a reader that began with `snapshot` or a position.
        patch: Option<bool>,
    }
}

stream_query! {
    /// The change stream in single answers.
    ChangesQuery {
        /// Begin after this position: the `nextPosition` of the answer before, with the same filters, or any other position. It wins over
        /// `snapshot`.
        after: Option<String>,
        /// How long to wait for something to tell; 0 if not given.
        #[param(maximum = 60)]
        wait_seconds: Option<u32>,
        /// How many upserts and deletes an answer holds at most; 500 if not given.
        #[param(minimum = 1, maximum = 10000)]
        limit: Option<u32>,
    }
}

/// The hosts of an ipcache entry: an address, as a stream looks at one object alone.
fn host(node: &str) -> Result<Vec<(Option<crate::model::ClusterName>, std::net::IpAddr)>, Problem> {
    let node_name = "is not a host address: a stream cannot follow a node's name, give one of its addresses";
    node.parse().map(|ip: std::net::IpAddr| vec![(None, ip.to_canonical())]).map_err(|_| Problem::parameter("node", node_name))
}
