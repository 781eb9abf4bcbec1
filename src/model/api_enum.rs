//! Enums whose values have names in the API.

/// An enum whose values have names in the API. `dto` writes and reads these names, and the OpenAPI
/// document has a schema for the enum.
pub trait ApiEnum: Copy + Eq + 'static {
    /// Name of the schema.
    const SCHEMA: &'static str;
    /// Description of the schema.
    const DESCRIPTION: &'static str;

    /// Returns all values, in the order of the schema.
    fn values() -> impl Iterator<Item = Self>;

    /// Returns the name of a value in the API.
    fn api_name(self) -> &'static str;

    /// Returns the value with this name in the API.
    #[must_use]
    fn from_api_name(name: &str) -> Option<Self> {
        Self::values().find(|value| value.api_name() == name)
    }
}

/// Defines an [`ApiEnum`] with the name of each value. The documentation of the enum is the
/// description of its schema.
macro_rules! api_enum {
    (
        $(#[doc = $description:literal])+
        $visibility:vis enum $name:ident { $($(#[doc = $meaning:expr])* $value:ident = $text:literal),+ $(,)? }
    ) => {
        $(#[doc = $description])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility enum $name { $($(#[doc = $meaning])* $value),+ }

        impl $name {
            /// All values, in the order of the API.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// Returns the name in the API.
            #[must_use]
            pub const fn api_name(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }
        }

        impl $crate::model::ApiEnum for $name {
            const SCHEMA: &'static str = stringify!($name);
            const DESCRIPTION: &'static str = concat!($($description),+).trim_ascii_start();

            fn values() -> impl Iterator<Item = Self> {
                Self::ALL.into_iter()
            }

            fn api_name(self) -> &'static str {
                self.api_name()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.api_name())
            }
        }
    };
}

pub(crate) use api_enum;
