//! The tables of the configuration file, with their defaults and bounds.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::config::permissions::Group;
use crate::config::values::{NumberOrText, duration, ms, size};
use crate::logging;
use canal_history::Limits;

/// The engine settings of a configuration, as the table `[engine]` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EngineSettings {
    pub url: Option<String>,
    pub url_file: Option<PathBuf>,
    pub host: Option<String>,
    #[serde(rename = "ttl", deserialize_with = "ms")]
    pub ttl_ms: Option<u64>,
    #[serde(rename = "renewal", deserialize_with = "ms")]
    pub renewal_ms: Option<u64>,
    #[serde(rename = "grace", deserialize_with = "ms")]
    pub grace_ms: Option<u64>,
    #[serde(rename = "margin", deserialize_with = "ms")]
    pub margin_ms: Option<u64>,
}

/// `engine = "URL"`, or `[engine]`.
pub(super) fn either<'de, D: Deserializer<'de>>(from: D) -> Result<EngineSettings, D::Error> {
    struct Either;
    impl<'de> Visitor<'de> for Either {
        type Value = EngineSettings;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the address of an engine, or a table `[engine]`")
        }

        fn visit_str<E>(self, url: &str) -> Result<EngineSettings, E> {
            Ok(EngineSettings { url: Some(url.to_owned()), ..EngineSettings::default() })
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EngineSettings, A::Error> {
            EngineSettings::deserialize(MapAccessDeserializer::new(map))
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

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PolicySection {
    /// How many times a waiter may be overtaken.
    pub bypass_max: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DaemonSection {
    /// 0 means never.
    #[serde(deserialize_with = "duration")]
    pub idle_exit: Option<Duration>,
    /// The log filter, in the syntax of `CANAL_LOG`.
    #[serde(deserialize_with = "log_filter")]
    pub log: Option<String>,
}

fn log_filter<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let filter = String::deserialize(from)?;
    logging::check(&filter).map_err(D::Error::custom)?;
    Ok(Some(filter))
}

/// The table `[history]`.
#[derive(Deserialize)]
#[serde(remote = "Limits", default = "Limits::default", deny_unknown_fields)]
pub(super) struct HistorySection {
    #[serde(rename = "keep", deserialize_with = "ms")]
    keep_ms: u64,
    /// 0 turns the history off.
    #[serde(rename = "max", deserialize_with = "max_bytes")]
    max_bytes: u64,
}

fn max_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match size(from)? {
        1..Limits::MAX_BYTES_MIN => {
            Err(D::Error::custom("a history needs at least 64KiB; 0 turns it off"))
        }
        max => Ok(max),
    }
}

/// The settings of background jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct JobSettings {
    /// How many bytes the records and logs of a user's jobs may have in total.
    #[serde(rename = "max", deserialize_with = "size")]
    pub max_bytes: u64,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self { max_bytes: 256 << 20 }
    }
}

/// The maximum length of the path of a Unix socket.
const SOCKET_BYTES_MAX: usize = 107;

/// The table `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MetricsSection {
    /// The address at which the daemon serves metrics, if it does.
    pub listen: Option<Listen>,
}

/// The address at which the daemon serves metrics.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Listen {
    /// A loopback address.
    Tcp(SocketAddr),
    /// The absolute path of a socket.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.starts_with('/') {
            if text.len() > SOCKET_BYTES_MAX || text.contains('\0') {
                return Err(format!(
                    "the path of a socket can have at most {SOCKET_BYTES_MAX} bytes, and no NUL"
                ));
            }
            return Ok(Self::Unix(text.into()));
        }
        let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        let local = local.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = local.or_else(|| text.parse().ok()).ok_or_else(|| {
            format!(
                "`{text}` is neither a loopback address with a port, such as `127.0.0.1:9632`, nor \
                 the absolute path of a socket"
            )
        })?;
        let ip = address.ip();
        if !ip.is_loopback() {
            return Err(format!(
                "metrics need a loopback address, and {ip} is not one: other machines could read \
                 them"
            ));
        }
        if address.port() == 0 {
            return Err("metrics need a port, such as `127.0.0.1:9632`".to_owned());
        }
        Ok(Self::Tcp(address))
    }
}

/// The table `[socket]`: the group and the mode of the socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SocketAccess {
    /// `None` keeps the group of the daemon.
    pub group: Option<Group>,
    #[serde(deserialize_with = "mode")]
    pub mode: Option<u32>,
}

/// A mode, as text in octal (`"0660"`) or as an octal number of TOML (`0o660`).
fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    from.deserialize_any(NumberOrText {
        expected: "a mode in octal, such as \"0660\"",
        number: |number| permitted(u32::try_from(number).ok()),
        text: |text| {
            let is_octal = !text.is_empty() && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
            permitted(u32::from_str_radix(text, 8).ok().filter(|_| is_octal))
        },
    })
}

/// Checks that these are permission bits and include those that the daemon's own user needs.
fn permitted(bits: Option<u32>) -> Result<Option<u32>, String> {
    if bits.is_some_and(|bits| bits <= 0o777 && bits & 0o600 == 0o600) {
        return Ok(bits);
    }
    let what = "`mode` is octal, at most \"0777\", and must let the daemon itself read and write, \
                such as \"0660\"";
    Err(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_and_absolute_paths_are_accepted() {
        for (text, shown) in [
            ("127.0.0.1:9632", "127.0.0.1:9632"),
            ("127.7.7.7:1", "127.7.7.7:1"),
            ("[::1]:9632", "[::1]:9632"),
            ("localhost:9632", "127.0.0.1:9632"),
            ("/run/canal/metrics.sock", "/run/canal/metrics.sock"),
        ] {
            assert_eq!(
                Listen::try_from(text.to_owned()).map(|it| it.to_string()).as_deref(),
                Ok(shown)
            );
        }
    }

    #[test]
    fn everything_else_is_refused_in_words() {
        let long = format!("/{}", "x".repeat(SOCKET_BYTES_MAX));
        for (text, what) in [
            ("0.0.0.0:9632", "0.0.0.0 is not one"),
            ("[::]:9632", ":: is not one"),
            ("192.168.0.7:9632", "loopback address"),
            ("[::ffff:127.0.0.1]:9632", "loopback address"),
            ("127.0.0.1:0", "need a port"),
            ("127.0.0.1", "neither a loopback address with a port"),
            ("9632", "neither"),
            ("localhost:http", "neither"),
            ("example.org:9632", "neither"),
            ("metrics.sock", "absolute path"),
            ("", "neither"),
            ("/a\0b", "at most 107 bytes"),
            (&long, "at most 107 bytes"),
        ] {
            let error = Listen::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
