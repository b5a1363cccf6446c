//! The `engine` key and the `[engine]` table of the configuration.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::config::history_section::duration;

/// The engine settings of a configuration, as the table `[engine]` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Configured {
    pub url: Option<String>,
    pub url_file: Option<PathBuf>,
    pub host: Option<String>,
    #[serde(rename = "ttl", deserialize_with = "optional_ms")]
    pub ttl_ms: Option<u64>,
    #[serde(rename = "renewal", deserialize_with = "optional_ms")]
    pub renewal_ms: Option<u64>,
    #[serde(rename = "grace", deserialize_with = "optional_ms")]
    pub grace_ms: Option<u64>,
    #[serde(rename = "margin", deserialize_with = "optional_ms")]
    pub margin_ms: Option<u64>,
}

/// `engine = "URL"`, or `[engine]`.
pub(super) fn either<'de, D: Deserializer<'de>>(from: D) -> Result<Configured, D::Error> {
    struct Either;
    impl<'de> Visitor<'de> for Either {
        type Value = Configured;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the address of an engine, or a table `[engine]`")
        }

        fn visit_str<E>(self, url: &str) -> Result<Configured, E> {
            Ok(Configured { url: Some(url.to_owned()), ..Configured::default() })
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Configured, A::Error> {
            Configured::deserialize(MapAccessDeserializer::new(map))
        }
    }
    from.deserialize_any(Either)
}

/// The address of an engine for messages: without user, password and parameters.
pub(crate) fn shown_address(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // The text is no address, but it may contain a secret.
        return "the engine".to_owned();
    };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    format!("{scheme}://{}", &rest[..end])
}

/// A duration that need not be set, in milliseconds.
fn optional_ms<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(Some(u64::try_from(duration(from)?.as_millis()).unwrap_or(u64::MAX)))
}
