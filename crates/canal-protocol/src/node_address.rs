//! The address of a node's daemon: `local`, `unix:/path/canal.sock`, `ssh:[user@]host[:port]`. And
//! a node as its user names it, and why it cannot be used.
//!
//! Invariant: no part of an ssh address can be mistaken for an option of ssh, or for input on which
//! a shell in the configuration of ssh (`ProxyCommand`, `Match exec`) would act.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use super::paths::{SOCKET_PATH_MAX, USUAL_SOCKET};

/// The address of the daemon that all commands of this machine call.
const LOCAL: &str = "local";

/// The address of a node's daemon. Its text form is the user's, in one spelling only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeAddress {
    /// The daemon that all commands of this machine call.
    ///
    /// Its part is a lease like the others, although nothing can cut it off. Tokens that increase
    /// from one majority to the next need a confirmation at each node, and only leases have one.
    Local,
    /// The daemon of this socket.
    Unix(PathBuf),
    /// The daemon of another machine, reached by ssh.
    Ssh(SshHost),
}

/// The target of an ssh connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SshHost {
    /// The user; `None`: the one in the configuration of ssh.
    pub user: Option<String>,
    /// A name, a number, or a name from the configuration of ssh.
    pub host: String,
    /// `None`: the one in the configuration of ssh.
    pub port: Option<u16>,
}

impl FromStr for NodeAddress {
    type Err = String;

    /// The error is one clause for people.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == LOCAL => Ok(Self::Local),
            Some(("unix", path)) => socket(path).map(Self::Unix),
            Some(("ssh", target)) => ssh_host(target).map(Self::Ssh),
            _ => Err("an address is local, unix:/path/canal.sock or ssh:[user@]host[:port]".into()),
        }
    }
}

impl NodeAddress {
    /// Whether a text is meant as an address, not as a name from the configuration.
    pub fn is_meant(text: &str) -> bool {
        text == LOCAL || text.contains(':') || text.contains('/')
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str(LOCAL),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Ssh(target) => {
                f.write_str("ssh:")?;
                if let Some(user) = &target.user {
                    write!(f, "{user}@")?;
                }
                match target.host.contains(':') {
                    true => write!(f, "[{}]", target.host)?,
                    false => f.write_str(&target.host)?,
                }
                target.port.map_or(Ok(()), |port| write!(f, ":{port}"))
            }
        }
    }
}

fn socket(path: &str) -> Result<PathBuf, String> {
    let path = Path::new(path);
    if !path.is_absolute() {
        return Err(format!(
            "unix: needs the absolute path of a socket: unix:/path/{USUAL_SOCKET}"
        ));
    }
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        return Err(format!(
            "the path of the socket has {length} bytes; the limit is {SOCKET_PATH_MAX}"
        ));
    }
    if path.to_string_lossy().contains(char::is_control) {
        return Err("the path of the socket contains a control character".to_owned());
    }
    Ok(path.to_owned())
}

fn ssh_host(text: &str) -> Result<SshHost, String> {
    if text.starts_with("//") {
        return Err("write ssh:[user@]host[:port], without slashes after `ssh:`".to_owned());
    }
    // Users of a directory service have an `@` in their name.
    let (user, rest) = match text.rsplit_once('@') {
        Some((user, rest)) => (Some(part(user, "user", &['.', '_', '-', '+', '@'])?), rest),
        None => (None, text),
    };
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("`[` has no `]` after it")?;
            let port = match after {
                "" => None,
                _ => Some(after.strip_prefix(':').ok_or("only `:port` can follow `]`")?),
            };
            (part(host, "host", &['.', '_', '-', ':', '%'])?, port)
        }
        None => {
            let split = rest.split_once(':');
            let (host, port) = split.map_or((rest, None), |(host, port)| (host, Some(port)));
            if port.is_some_and(|port| port.contains(':')) {
                return Err("write an IPv6 address in brackets: ssh:[::1]:22".to_owned());
            }
            (part(host, "host", &['.', '_', '-'])?, port)
        }
    };
    let port = port.map(|text| match text.parse() {
        Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err("a port is a number from 1 to 65535"),
    });
    let port = port.transpose()?;
    Ok(SshHost { user, host, port })
}

/// A part of the address. It may contain only letters, digits and these characters.
fn part(text: &str, what: &str, others: &[char]) -> Result<String, String> {
    if text.is_empty() {
        return Err(format!("the {what} is missing; write ssh:[user@]host[:port]"));
    }
    if text.starts_with('-') {
        return Err(format!("a {what} cannot begin with `-`: ssh would take it for an option"));
    }
    match text.chars().find(|c| !c.is_alphanumeric() && !others.contains(c)) {
        Some(c) => Err(format!("a {what} cannot contain {c:?}")),
        None => Ok(text.to_owned()),
    }
}

/// A node of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The user's word for the node: its name, or else its address.
    pub name: String,
    /// The address of the node.
    pub address: NodeAddress,
    /// The program on the node, if it is not the `canal` in its PATH.
    pub canal: Option<String>,
}

impl Node {
    /// A node that has no name.
    pub fn at(address: NodeAddress) -> Self {
        Self { name: address.to_string(), address, canal: None }
    }
}

/// Why a node is unusable or unreachable, or why it refused something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct NodeFailure {
    /// Whether another attempt is useless until a user changes something.
    pub permanent: bool,
    /// The problem, as a clause in lower case.
    pub what: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

impl NodeFailure {
    /// A failure that may go away by itself.
    pub fn passing(what: impl Into<String>) -> Self {
        Self { permanent: false, what: what.into(), hint: None }
    }

    /// A failure that stays until a user changes something.
    pub fn permanent(what: impl fmt::Display) -> Self {
        Self { permanent: true, what: what.to_string(), hint: None }
    }

    /// Adds advice.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// A system call on this side failed.
impl From<io::Error> for NodeFailure {
    fn from(error: io::Error) -> Self {
        Self::permanent(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(user: Option<&str>, host: &str, port: Option<u16>) -> NodeAddress {
        NodeAddress::Ssh(SshHost { user: user.map(str::to_owned), host: host.to_owned(), port })
    }

    #[test]
    fn an_address_is_read_and_shown_in_one_spelling() {
        for (text, address) in [
            ("local", NodeAddress::Local),
            ("unix:/run/x/canal.sock", NodeAddress::Unix("/run/x/canal.sock".into())),
            ("ssh:web1", ssh(None, "web1", None)),
            (
                "ssh:deploy@web1.example.org:2222",
                ssh(Some("deploy"), "web1.example.org", Some(2222)),
            ),
            ("ssh:ann@corp.org@web1", ssh(Some("ann@corp.org"), "web1", None)),
            ("ssh:[::1]:22", ssh(None, "::1", Some(22))),
            ("ssh:u@[fe80::1%eth0]", ssh(Some("u"), "fe80::1%eth0", None)),
        ] {
            assert_eq!(text.parse::<NodeAddress>().as_ref(), Ok(&address), "{text}");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn nothing_that_ssh_or_a_shell_would_act_upon_is_an_address() {
        for text in [
            "ssh:-oProxyCommand=x",
            "ssh:-p@web1",
            "ssh:u@-web1",
            "ssh:web1;reboot",
            "ssh:$(reboot)",
            "ssh:`reboot`@web1",
            "ssh:web 1",
            "ssh:web\n1",
            "ssh:web1,web2",
            "ssh:[-x]",
            "ssh:a'b",
        ] {
            assert!(text.parse::<NodeAddress>().is_err(), "{text}");
        }
        let error = "ssh:-oX".parse::<NodeAddress>().unwrap_err();
        assert_eq!(error, "a host cannot begin with `-`: ssh would take it for an option");
    }

    #[test]
    fn a_wrong_address_says_what_one_looks_like() {
        for (text, why) in [
            ("web1", "an address is local, unix:/path"),
            ("tcp:web1", "an address is local, unix:/path"),
            ("unix:x.sock", "needs the absolute path"),
            ("unix:", "needs the absolute path"),
            ("ssh:", "the host is missing"),
            ("ssh:@web1", "the user is missing"),
            ("ssh://web1", "without slashes after"),
            ("ssh:web1:x", "a port is a number"),
            ("ssh:web1:0", "a port is a number"),
            ("ssh:web1:+5", "a port is a number"),
            ("ssh:web1:65536", "a port is a number"),
            ("ssh:::1", "in brackets"),
            ("ssh:[::1", "has no `]`"),
            ("ssh:[::1]x", "only `:port`"),
        ] {
            let error = text.parse::<NodeAddress>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let long = format!("unix:/{}", "x".repeat(SOCKET_PATH_MAX));
        assert!(long.parse::<NodeAddress>().unwrap_err().contains("108 bytes"));
    }
}
