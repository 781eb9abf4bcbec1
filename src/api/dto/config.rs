//! Conversion of the settings in use.

use crate::dto::config::{Config, Setting};

impl From<&[crate::model::Setting]> for Config {
    fn from(settings: &[crate::model::Setting]) -> Self {
        let items = settings.iter().cloned().map(|crate::model::Setting { name, values, source, origin, description }| Setting {
            name,
            values,
            source: source.into(),
            origin,
            description,
        });
        Self { items: items.collect() }
    }
}
