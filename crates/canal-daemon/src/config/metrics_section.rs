//! The `[metrics]` table of the configuration.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

/// The maximum length of the path of a Unix socket.
const SOCKET_BYTES_MAX: usize = 107;

/// The table `[metrics]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Section {
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
        parse(&text)
    }
}

fn parse(text: &str) -> Result<Listen, String> {
    if text.starts_with('/') {
        if text.len() > SOCKET_BYTES_MAX || text.contains('\0') {
            return Err(format!(
                "the path of a socket can have at most {SOCKET_BYTES_MAX} bytes, and no NUL"
            ));
        }
        return Ok(Listen::Unix(text.into()));
    }
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let local = local.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let address = local.or_else(|| text.parse().ok()).ok_or_else(|| {
        format!(
            "`{text}` is neither a loopback address with a port, such as `127.0.0.1:9632`, nor the \
             absolute path of a socket"
        )
    })?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "metrics need a loopback address, and {} is not one: other machines could read them",
            address.ip()
        ));
    }
    if address.port() == 0 {
        return Err("metrics need a port, such as `127.0.0.1:9632`".to_owned());
    }
    Ok(Listen::Tcp(address))
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
            assert_eq!(parse(text).map(|it| it.to_string()).as_deref(), Ok(shown));
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
            let error = parse(text).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
