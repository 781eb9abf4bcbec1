//! Values of the impact that a missing cluster or namespace has.

use crate::model::api_enum::api_enum;

api_enum! {
    /// What happens to an object if a cluster or a namespace leaves the mesh, from the least to the
    /// most severe: `unnoticed`, `losesSome` (some backends, the others stay in use), `fallsBack`
    /// (to backends that were not in use before) or `losesAll`. `onlyHere`: only this cluster
    /// announces the object. `unknown`: the service is too large to be merged.
    pub enum ImpactEffect {
        /// Nothing that is in use is lost.
        Unnoticed = "unnoticed",
        /// Some of the backends in use are lost.
        LosesSome = "losesSome",
        /// Agents use backends that they did not use before.
        FallsBack = "fallsBack",
        /// No healthy backend is left.
        LosesAll = "losesAll",
        /// The object exists nowhere else.
        OnlyHere = "onlyHere",
        /// The service is too large to be merged.
        Unknown = "unknown",
    }
}

api_enum! {
    /// Kind of an object that is affected.
    pub enum ImpactKind {
        /// A global service.
        Service = "service",
        /// An identity.
        Identity = "identity",
        /// A CIDR in the ipcache.
        Cidr = "cidr",
    }
}
