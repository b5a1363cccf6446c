//! The `engine` key and the `[engine]` table of the configuration.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use toml::Spanned;

use canal_text::duration::read as duration;

/// The engine settings of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Configured {
    pub url: Option<String>,
    pub url_file: Option<PathBuf>,
    pub host: Option<String>,
    pub ttl_ms: Option<u64>,
    pub renewal_ms: Option<u64>,
    pub grace_ms: Option<u64>,
    pub margin_ms: Option<u64>,
}

/// `engine = "URL"`, or `[engine]`.
#[derive(Debug, Default)]
pub(crate) struct Section(Details);

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Details {
    pub url: Option<String>,
    pub url_file: Option<Spanned<PathBuf>>,
    pub host: Option<String>,
    pub ttl: Option<Spanned<String>>,
    pub renewal: Option<Spanned<String>>,
    pub grace: Option<Spanned<String>>,
    pub margin: Option<Spanned<String>>,
}

impl<'de> Deserialize<'de> for Section {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Section;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the address of an engine, or a table `[engine]`")
            }

            fn visit_str<E>(self, url: &str) -> Result<Section, E> {
                Ok(Section(Details { url: Some(url.to_owned()), ..Details::default() }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Section, A::Error> {
                Details::deserialize(MapAccessDeserializer::new(map)).map(Section)
            }
        }
        from.deserialize_any(Either)
    }
}

impl Section {
    /// Converts the section, and parses its durations.
    ///
    /// # Errors
    /// The offset of the mistake, and its description.
    pub(crate) fn configured(self) -> Result<Configured, (usize, String)> {
        let Details { url, url_file, host, ttl, renewal, grace, margin } = self.0;
        if let (Some(_), Some(file)) = (&url, &url_file) {
            let what = "`url` and `url_file` both name the engine; use one of them";
            return Err((file.span().start, what.to_owned()));
        }
        let ms = |text: Option<Spanned<String>>| {
            let Some(text) = text else { return Ok(None) };
            let length = duration(text.get_ref()).map_err(|what| (text.span().start, what))?;
            Ok(Some(u64::try_from(length.as_millis()).unwrap_or(u64::MAX)))
        };
        Ok(Configured {
            url,
            url_file: url_file.map(Spanned::into_inner),
            host,
            ttl_ms: ms(ttl)?,
            renewal_ms: ms(renewal)?,
            grace_ms: ms(grace)?,
            margin_ms: ms(margin)?,
        })
    }
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
