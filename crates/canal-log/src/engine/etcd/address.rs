//! The address of an etcd and the credentials for it:
//! `etcd://user:password@host:2379,host:2379/prefix`.
//!
//! Invariant: no text made from an [`Address`] shows the password.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use http::uri::Authority;
use percent_encoding::percent_decode_str;

use crate::engine::Outage;

/// The prefix of all keys if the address names none.
const PREFIX: &str = "canal";

/// The port if the address names none.
const PORT: u16 = 2379;

/// The address of an etcd and the credentials for it.
#[derive(Clone, Debug)]
pub(super) struct Address {
    /// `host:port` of each member; at least one.
    pub endpoints: Vec<String>,
    /// The name and password, if the address has them.
    pub user: Option<User>,
    /// How to encrypt; `None` for `etcd://`.
    pub tls: Option<Tls>,
    /// The prefix of all keys; begins and ends with `/`.
    pub prefix: String,
}

#[derive(Clone)]
pub(super) struct User {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({})", self.name)
    }
}

/// Files in PEM format.
#[derive(Clone, Debug, Default)]
pub(super) struct Tls {
    /// The trusted authorities; those of the system if `None`.
    pub authorities: Option<PathBuf>,
    /// The certificate that canal presents, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, Outage> {
        Self::read(text).map_err(|error| Outage::refused(error.to_string(), None))
    }

    fn read(text: &str) -> anyhow::Result<Self> {
        let (tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (None, rest),
            (None, Some(rest)) => (Some(Tls::default()), rest),
            (None, None) => {
                bail!("an etcd address begins with etcd:// or, for TLS, with etcds://")
            }
        };
        ensure!(!rest.contains('#'), "has a # (write it as %23 in a password)");
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(parse_user(user)?), hosts),
            // A `/` or a `?` in a password would split it; the error shows no part of it.
            None if path.contains('@') || query.contains('@') => bail!(
                "has an @ after a / or ? (write these as %2F and %3F in a password; elsewhere, \
                 write @ as %40)"
            ),
            None => (None, authority),
        };
        let endpoints = hosts.split(',').map(parse_host).collect::<Result<_, _>>()?;
        let tls = parse_query(query, tls)?;
        let path = decode(path)?;
        let path = Some(path.trim_matches('/')).filter(|path| !path.is_empty());
        Ok(Self { endpoints, user, tls, prefix: format!("/{}/", path.unwrap_or(PREFIX)) })
    }
}

/// Decodes text in which `%` precedes two hexadecimal digits.
fn decode(text: &str) -> anyhow::Result<String> {
    let is_escape =
        |part: &str| part.len() >= 2 && part.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit);
    let decoded = percent_decode_str(text).decode_utf8().ok();
    decoded.filter(|_| text.split('%').skip(1).all(is_escape)).map(Cow::into_owned).context(
        "has a % that is not followed by two hexadecimal digits, or that does not decode to UTF-8 \
         (write % itself as %25)",
    )
}

fn parse_user(text: &str) -> anyhow::Result<User> {
    let parts =
        text.split_once(':').filter(|(name, password)| !name.is_empty() && !password.is_empty());
    let (name, password) =
        parts.context("names a user without a password: etcd://user:password@host")?;
    Ok(User { name: decode(name)?, password: decode(password)? })
}

fn parse_host(text: &str) -> anyhow::Result<String> {
    ensure!(!text.is_empty(), "names no host: etcd://host:2379/prefix");
    let parsed = || {
        let authority: Authority = text.parse().ok()?;
        let port = match text.strip_prefix(authority.host())? {
            "" => PORT,
            _ => authority.port_u16()?,
        };
        Some(format!("{}:{port}", authority.host())).filter(|_| !authority.host().is_empty())
    };
    parsed().with_context(|| format!("`{text}` is not host:port"))
}

fn parse_query(query: &str, tls: Option<Tls>) -> anyhow::Result<Option<Tls>> {
    let mut found: [(&str, Option<PathBuf>); 3] = [("cacert", None), ("cert", None), ("key", None)];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some((_, slot)) = found.iter_mut().find(|(known, _)| *known == name) else {
            bail!("has the unknown parameter `{name}`; the known ones are cacert, cert and key");
        };
        ensure!(tls.is_some(), "has the parameter `{name}`, which needs etcds://");
        let before = slot.replace(PathBuf::from(decode(value)?));
        ensure!(before.is_none(), "has the parameter `{name}` twice");
    }
    let [(_, authorities), (_, cert), (_, key)] = found;
    ensure!(cert.is_some() == key.is_some(), "needs both cert= and key=, or neither");
    Ok(tls.map(|_| Tls { authorities, identity: cert.zip(key) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, Outage> {
        Address::parse(text)
    }

    #[test]
    fn the_shortest_address_has_the_usual_port_and_prefix() {
        let address = parse("etcd://localhost").unwrap();
        assert_eq!(address.endpoints, ["localhost:2379"]);
        assert_eq!(address.prefix, "/canal/");
        assert!(address.user.is_none() && address.tls.is_none());
    }

    #[test]
    fn every_part_of_an_address_is_parsed() {
        let address = parse(
            "etcds://ci:p%40ss%3A@10.0.0.1:2379,[::1]:7,db/teams/build/?cacert=/ca.pem&cert=/c&key=/k%20ey",
        )
        .unwrap();
        assert_eq!(address.endpoints, ["10.0.0.1:2379", "[::1]:7", "db:2379"]);
        let user = address.user.clone().unwrap();
        assert_eq!((user.name.as_str(), user.password.as_str()), ("ci", "p@ss:"));
        assert_eq!(address.prefix, "/teams/build/");
        let tls = address.tls.clone().unwrap();
        assert_eq!(tls.authorities, Some("/ca.pem".into()));
        assert_eq!(tls.identity, Some(("/c".into(), "/k ey".into())));
    }

    #[test]
    fn no_text_shows_the_password() {
        let address = parse("etcd://ci:secret@h/p").unwrap();
        assert_eq!((address.endpoints[0].as_str(), address.prefix.as_str()), ("h:2379", "/p/"));
        assert!(!format!("{address:?}").contains("secret"));
        for bad in ["u:secret@h:x", "u:secret@", "u:secret@h?a=b", "u:secret/@h", "u:x?secret@h"] {
            let bad = &format!("etcd://{bad}");
            assert!(!parse(bad).unwrap_err().to_string().contains("secret"), "{bad}");
        }
    }

    #[test]
    fn bad_addresses_get_an_error_with_the_reason() {
        let no_host = "names no host: etcd://host:2379/prefix";
        let scheme = "an etcd address begins with etcd:// or, for TLS, with etcds://";
        let no_password = "names a user without a password: etcd://user:password@host";
        let percent = "has a % that is not followed by two hexadecimal digits, or that does not \
                       decode to UTF-8 (write % itself as %25)";
        let cases = [
            ("http://h", scheme),
            ("etcd:/h", scheme),
            ("etcd://", no_host),
            ("etcd:///p", no_host),
            ("etcd://a,,b", no_host),
            ("etcd://h:", "`h:` is not host:port"),
            ("etcd://h:x", "`h:x` is not host:port"),
            ("etcd://h:70000", "`h:70000` is not host:port"),
            ("etcd://a b", "`a b` is not host:port"),
            ("etcd://:2379", "`:2379` is not host:port"),
            ("etcd://u@h", no_password),
            ("etcd://u:@h", no_password),
            ("etcd://u:%zz@h", percent),
            ("etcd://u:%c3@h", percent),
            ("etcd://u:%4é@h", percent),
            ("etcd://h/%4", percent),
            ("etcd://h?cacert=/x", "has the parameter `cacert`, which needs etcds://"),
            (
                "etcds://h?ca=/x",
                "has the unknown parameter `ca`; the known ones are cacert, cert and key",
            ),
            ("etcds://h?cert=/x", "needs both cert= and key=, or neither"),
            ("etcds://h?key=/x&key=/y", "has the parameter `key` twice"),
            ("etcd://u:a#b@h", "has a # (write it as %23 in a password)"),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), error, "{text}");
        }
    }
}
