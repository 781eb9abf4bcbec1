//! Parameters of the change stream, as a stream and as single answers. Both have the same filters.

use std::time::SystemTime;

use serde::Deserialize;
use utoipa::IntoParams;

use super::filters::Filters;
use super::time_parameter::parse_time_parameter;
use crate::api::dto::meta::MetaOptions;
use crate::api::problem::Problem;
use crate::dto::values::{IdentityScope, NeverRead, OnExpired, StreamedKind, closed};
use crate::handle::Filter;

/// Parameters that both forms of the change stream accept, except filters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamParameters<'a> {
    pub(crate) snapshot: bool,
    pub(crate) after: Option<&'a str>,
    pub(crate) since: Option<SystemTime>,
    pub(crate) on_expired: closed::OnExpired,
    pub(crate) meta_options: MetaOptions,
}

/// Parameters of a form of the change stream.
pub(crate) trait StreamQuery {
    /// Returns the parameters that both forms accept.
    fn common(&self) -> Result<StreamParameters<'_>, Problem>;

    /// Returns the filter of the stream.
    fn filter(&self) -> Result<Filter, Problem>;
}

macro_rules! stream_query {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Deserialize, IntoParams)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub(crate) struct $name {
            /// Only this kind (`node`, `service`, `identity`, `ipcache`, `serviceExport`,
            /// `endpointSlice`, `cluster`, `problem`); repeatable. Findings are only sent with
            /// `kind=problem`.
            #[serde(default)]
            pub(crate) kind: Vec<StreamedKind>,
            /// Only this cluster; repeatable.
            #[serde(default)]
            pub(crate) cluster: Vec<String>,
            /// Only objects whose labels match, in kubectl's syntax.
            pub(crate) label_selector: Option<String>,
            /// One requirement in the same syntax; repeatable, all must match.
            #[serde(default)]
            pub(crate) label: Vec<String>,
            /// Only services, service exports, endpoint slices and ipcache entries of pods in this
            /// namespace.
            pub(crate) namespace: Option<String>,
            /// Only nodes, services, service exports and endpoint slices with this name.
            pub(crate) name: Option<String>,
            /// Only services that are shared (`true`) or not shared (`false`).
            pub(crate) shared: Option<bool>,
            /// Only nodes that have this address.
            pub(crate) ip: Option<String>,
            /// Only identities of this scope: `global`, `local`, `remoteNode` or `unknown`.
            pub(crate) scope: Option<IdentityScope>,
            /// Only ipcache entries inside this CIDR.
            pub(crate) cidr: Option<String>,
            /// Only ipcache entries of this numeric identity.
            pub(crate) identity: Option<u32>,
            /// Only ipcache entries with this host address. The stream does not accept a node name
            /// here.
            pub(crate) node: Option<String>,
            /// Only ipcache entries of pods with this name.
            pub(crate) pod: Option<String>,
            /// Begin with the newest state of everything that changed after this time: RFC 3339, or
            /// a duration before now (`10m`, `2h`). `after` takes precedence over `since`, and
            /// `since` over `snapshot`. If the deletes since then are not known any more, the
            /// answer begins with a `reset`.
            pub(crate) since: Option<String>,
            /// Begin with a snapshot of everything that matches.
            pub(crate) snapshot: Option<bool>,
            $($(#[$field_meta])* pub(crate) $field: $type,)*
            /// Reaction to a position that can no longer be served: `reset` (default) sends a
            /// `reset` event, `fail` answers 410.
            pub(crate) on_expired: Option<OnExpired>,
            /// Answer 503 if the data at the start is older than this number of seconds.
            pub(crate) max_age: Option<u32>,
            /// `ignore`: `maxAge` ignores clusters that were never read.
            pub(crate) never_read: Option<NeverRead>,
        }

        impl StreamQuery for $name {
            fn common(&self) -> Result<StreamParameters<'_>, Problem> {
                let unknown = |other| Problem::bad_parameter("onExpired", format!("{other:?} is not supported: use reset or fail"));
                Ok(StreamParameters {
                    snapshot: self.snapshot == Some(true),
                    after: self.after.as_deref(),
                    since: self.since.as_deref().map(|text| parse_time_parameter("since", text, SystemTime::now())).transpose()?,
                    on_expired: self.on_expired.clone().map_or(Ok(closed::OnExpired::Reset), |value| value.into_known().map_err(unknown))?,
                    meta_options: MetaOptions::parse(self.max_age, self.never_read.clone(), None)?,
                })
            }

            fn filter(&self) -> Result<Filter, Problem> {
                let Self { kind, cluster, label_selector, label, namespace, name, shared, ip, scope, cidr, identity, node, pod, .. } =
                    self.clone();
                let search = None;
                let filters =
                    Filters { kind, cluster, label_selector, label, namespace, name, shared, ip, scope, cidr, identity, node, pod, search };
                filters.parse(None)
            }
        }
    };
}

stream_query! {
    /// Parameters of the change stream: the filters of lists that need only the object itself, and
    /// the start.
    EventsQuery {
        /// Begin after this position. `Last-Event-ID` takes precedence over `after`, and `after`
        /// over `snapshot`.
        after: Option<String>,
        /// If only the backends of a service changed, send a `patch` to the object sent before
        /// instead of the whole service. Only while the stream is live, and only to clients that
        /// began with `snapshot` or a position.
        patch: Option<bool>,
    }
}

stream_query! {
    /// Parameters of the change stream in single answers.
    ChangesQuery {
        /// Begin after this position: the previous answer's `nextPosition` (with the same filters)
        /// or any other position. It takes precedence over `snapshot`.
        after: Option<String>,
        /// Maximum time to wait for events, in seconds; default 0.
        #[param(maximum = 60)]
        wait_seconds: Option<u32>,
        /// Maximum number of upserts and deletes in an answer; default 500.
        #[param(minimum = 1, maximum = 10000)]
        limit: Option<u32>,
    }
}
