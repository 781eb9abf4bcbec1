//! Which source may overwrite which in an agent's ipcache.

/// Where an agent has an entry from, strongest first (`pkg/source/source.go`, `defaultSources`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Addresses of the API server.
    KubeApiServer,
    /// The agent's own endpoints.
    Local,
    /// The own cluster's key-value store.
    Kvstore,
    /// CiliumEndpoints and CiliumNodes of the own cluster.
    CustomResource,
    /// Pods and nodes as Kubernetes has them.
    Kubernetes,
    /// Another cluster.
    ClusterMesh,
    /// Policies from a directory.
    Directory,
    /// The agent's own API.
    LocalApi,
    /// Made from what others say.
    Generated,
    /// From before the agent's restart.
    Restored,
    /// Not said.
    Unspecified,
}

/// The rules of which agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Era {
    /// Those of today: new may overwrite what is there if it is as strong or stronger. Remote clusters are [`Source::ClusterMesh`].
    #[default]
    Current,
    /// Those of 1.8 and 1.9, which the seeds show: six sources, a rule for each (`source.AllowOverwrite`). Remote clusters are
    /// [`Source::Kvstore`].
    Seeds,
}

impl Era {
    /// What entries of remote clusters come from.
    #[must_use]
    pub const fn remote(self) -> Source {
        match self {
            Self::Current => Source::ClusterMesh,
            Self::Seeds => Source::Kvstore,
        }
    }

    /// Whether an entry from `new` may take the place of one from `existing`.
    #[must_use]
    pub fn may_overwrite(self, new: Source, existing: Source) -> bool {
        match self {
            Self::Current => new <= existing,
            Self::Seeds => may_overwrite_in_seeds(new, existing),
        }
    }
}

/// `source.AllowOverwrite` as the agents of the seeds had it. Sources that they did not know count as [`Source::Unspecified`].
fn may_overwrite_in_seeds(new: Source, existing: Source) -> bool {
    use Source::{
        ClusterMesh, CustomResource, Directory, Generated, KubeApiServer, Kubernetes, Kvstore, Local, LocalApi, Restored, Unspecified,
    };
    let is_unspecified = matches!(new, Unspecified | Restored | KubeApiServer | ClusterMesh | Directory | LocalApi);
    match existing {
        // Kubernetes state can be overwritten by everything but generated and unspecified state
        Kubernetes => !is_unspecified && new != Generated,
        CustomResource => !is_unspecified && new != Generated && new != Kubernetes,
        Kvstore => matches!(new, Kvstore | Local),
        // local state can only be overwritten by other local state
        Local => new == Local,
        Generated => !is_unspecified,
        Unspecified | Restored | KubeApiServer | ClusterMesh | Directory | LocalApi => true,
    }
}
