//! The address of an etcd and the credentials for it:
//! `etcd://user:password@host:2379,host:2379/prefix`.
//!
//! Invariant: no text made from an [`Address`] shows the password.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use http::uri::Authority;
use percent_encoding::percent_decode_str;

/// The prefix of all keys if the address names none.
const PREFIX: &str = "/canal";

/// The port if the address names none.
const PORT: u16 = 2379;

/// The address of an etcd and the credentials for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// `host:port` of each member; at least one.
    pub endpoints: Vec<String>,
    /// The name and password, if the address has them.
    pub user: Option<User>,
    /// How to encrypt; `None` for `etcd://`.
    pub tls: Option<Tls>,
    /// The prefix of all keys; begins and ends with `/`.
    pub prefix: String,
}

#[derive(Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({})", self.name)
    }
}

/// Files in PEM format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The trusted authorities; those of the system if `None`.
    pub authorities: Option<PathBuf>,
    /// The certificate that canal presents, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why an address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It has neither of the two schemes.
    #[error("an etcd address begins with etcd:// or, for TLS, with etcds://")]
    Scheme,
    /// It names no host.
    #[error("names no host: etcd://host:2379/prefix")]
    NoHost,
    /// Part of it is no valid host or port.
    #[error("`{0}` is not host:port")]
    Host(String),
    /// A name without a password.
    #[error("names a user without a password: etcd://user:password@host")]
    NoPassword,
    /// A `%` without two hexadecimal digits, or digits that are not text.
    #[error(
        "has a % that is not followed by two hexadecimal digits, or that does not decode to UTF-8 \
         (write % itself as %25)"
    )]
    Percent,
    /// A parameter that does not exist.
    #[error("has the unknown parameter `{0}`; the known ones are cacert, cert and key")]
    Parameter(String),
    /// A repeated parameter.
    #[error("has the parameter `{0}` twice")]
    Twice(String),
    /// A TLS parameter without TLS.
    #[error("has the parameter `{0}`, which needs etcds://")]
    NoTls(String),
    /// A certificate without its key, or a key without its certificate.
    #[error("needs both cert= and key=, or neither")]
    HalfIdentity,
    /// A `/` or a `?` in a password would split it; the error shows no part of it.
    #[error(
        "has an @ after a / or ? (write these as %2F and %3F in a password; elsewhere, write @ as \
         %40)"
    )]
    At,
    /// A fragment.
    #[error("has a # (write it as %23 in a password)")]
    Fragment,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (None, rest),
            (None, Some(rest)) => (Some(Tls::default()), rest),
            (None, None) => return Err(AddressError::Scheme),
        };
        if rest.contains('#') {
            return Err(AddressError::Fragment);
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(parse_user(user)?), hosts),
            None if path.contains('@') || query.contains('@') => return Err(AddressError::At),
            None => (None, authority),
        };
        let endpoints = hosts.split(',').map(parse_host).collect::<Result<_, _>>()?;
        let tls = parse_query(query, tls)?;
        Ok(Self { endpoints, user, tls, prefix: parse_prefix(path)? })
    }
}

fn decode(text: &str) -> Result<String, AddressError> {
    let hex = |c: Option<char>| c.is_some_and(|c| c.is_ascii_hexdigit());
    for (_, after) in text.match_indices('%').map(|(at, _)| text.split_at(at + 1)) {
        let mut next = after.chars();
        if !(hex(next.next()) && hex(next.next())) {
            return Err(AddressError::Percent);
        }
    }
    let text = percent_decode_str(text).decode_utf8().map_err(|_| AddressError::Percent)?;
    Ok(text.into_owned())
}

fn parse_user(text: &str) -> Result<User, AddressError> {
    let (name, password) = text.split_once(':').ok_or(AddressError::NoPassword)?;
    if name.is_empty() || password.is_empty() {
        return Err(AddressError::NoPassword);
    }
    Ok(User { name: decode(name)?, password: decode(password)? })
}

fn parse_host(text: &str) -> Result<String, AddressError> {
    if text.is_empty() {
        return Err(AddressError::NoHost);
    }
    let authority: Authority = text.parse().map_err(|_| AddressError::Host(text.to_owned()))?;
    if authority.host().is_empty() {
        return Err(AddressError::Host(text.to_owned()));
    }
    let port = match text.strip_prefix(authority.host()) {
        Some("") => PORT,
        Some(_) => authority.port_u16().ok_or_else(|| AddressError::Host(text.to_owned()))?,
        None => return Err(AddressError::Host(text.to_owned())),
    };
    Ok(format!("{}:{port}", authority.host()))
}

fn parse_prefix(path: &str) -> Result<String, AddressError> {
    let path = decode(path)?;
    let path = path.trim_matches('/');
    Ok(if path.is_empty() { format!("{PREFIX}/") } else { format!("/{path}/") })
}

fn parse_query(query: &str, tls: Option<Tls>) -> Result<Option<Tls>, AddressError> {
    let mut found: [(&str, Option<PathBuf>); 3] = [("cacert", None), ("cert", None), ("key", None)];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some((_, slot)) = found.iter_mut().find(|(known, _)| *known == name) else {
            return Err(AddressError::Parameter(name.to_owned()));
        };
        if tls.is_none() {
            return Err(AddressError::NoTls(name.to_owned()));
        }
        if slot.replace(PathBuf::from(decode(value)?)).is_some() {
            return Err(AddressError::Twice(name.to_owned()));
        }
    }
    let [(_, authorities), (_, cert), (_, key)] = found;
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(AddressError::HalfIdentity),
    };
    Ok(tls.map(|_| Tls { authorities, identity }))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "etcds://" } else { "etcd://" })?;
        f.write_str(&self.endpoints.join(","))?;
        f.write_str(self.prefix.trim_end_matches('/'))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, AddressError> {
        text.parse()
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
        assert_eq!(address.to_string(), "etcd://h:2379/p");
        assert!(!format!("{address:?}").contains("secret"));
        for bad in ["u:secret@h:x", "u:secret@", "u:secret@h?a=b", "u:secret/@h", "u:x?secret@h"] {
            let bad = &format!("etcd://{bad}");
            assert!(!parse(bad).unwrap_err().to_string().contains("secret"), "{bad}");
        }
    }

    #[test]
    fn bad_addresses_get_an_error_with_the_reason() {
        use AddressError as E;
        let cases = [
            ("http://h", E::Scheme),
            ("etcd:/h", E::Scheme),
            ("etcd://", E::NoHost),
            ("etcd:///p", E::NoHost),
            ("etcd://a,,b", E::NoHost),
            ("etcd://h:", E::Host("h:".into())),
            ("etcd://h:x", E::Host("h:x".into())),
            ("etcd://h:70000", E::Host("h:70000".into())),
            ("etcd://a b", E::Host("a b".into())),
            ("etcd://:2379", E::Host(":2379".into())),
            ("etcd://u@h", E::NoPassword),
            ("etcd://u:@h", E::NoPassword),
            ("etcd://u:%zz@h", E::Percent),
            ("etcd://u:%c3@h", E::Percent),
            ("etcd://h/%4", E::Percent),
            ("etcd://h?cacert=/x", E::NoTls("cacert".into())),
            ("etcds://h?ca=/x", E::Parameter("ca".into())),
            ("etcds://h?cert=/x", E::HalfIdentity),
            ("etcds://h?key=/x&key=/y", E::Twice("key".into())),
            ("etcd://u:a#b@h", E::Fragment),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }
}
