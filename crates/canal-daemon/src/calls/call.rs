//! The calls that clients send, read from messages, and the final replies to them.

use std::borrow::Cow;
use std::os::fd::OwnedFd;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use slotmap::new_key_type;

use crate::calls::call_table::table_of_calls;
use canal_protocol::frame::{self, FrameError};
use canal_protocol::service::{DescriptionQuery, SERVICE, ServiceError};
use canal_protocol::{
    Acquire, Collect, ConfirmAt, DeadlinePageQuery, EndedLeasesQuery, Failure, HistoryQuery,
    HistoryStatsQuery, INTERFACE, Kill, LeaderQuery, NODES_INTERFACE, NoParameters, Prioritize,
    Release, Renew, Report, RequestTag, Resize, Restrict, StatusQuery, WaitsNear, WhyQuery,
    WouldAcquire, WouldKill,
};

/// A parsed call.
#[derive(Debug)]
pub(crate) struct Call {
    /// The call's method and parameters.
    pub asked: Asked,
    pub replies: Replies,
    /// The descriptors that came with the call.
    pub fds: Vec<OwnedFd>,
}

/// The replies that the client of a call expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    None,
    One,
    /// Any number before the final one.
    Many,
}

/// A call, as varlink frames it, that borrows from its message. The daemon parses the parameters
/// once it knows the method.
#[derive(Deserialize)]
struct Incoming<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
    #[serde(default)]
    more: bool,
    #[serde(default)]
    oneway: bool,
}

/// How the daemon treats a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trait {
    /// The daemon needs the log to serve it, and cannot serve it while it reads the log again.
    NeedsLog,
    /// The reply may be long because it covers the whole table or the history.
    IsReport,
    /// The daemon serves it before others, because it releases something or keeps a lease alive.
    GoesFirst,
    /// It asks for a lock, so its client has to stay.
    AsksForLock,
    /// The reply does not depend on the table.
    NeedsNoTable,
    /// A restricted connection may make it, whatever its parameters are.
    IsUnrestricted,
}

macro_rules! define_asked {
    (
        |$server:ident, $caller:ident, $it:ident|
        $($interface:ident: $call:ident($parameters:ty) [$($trait:ident),*] => $answer:expr;)*
    ) => {
        /// A method and its parameters.
        #[derive(Debug)]
        pub(crate) enum Asked {
            $($call($parameters),)*
            /// A call that the daemon does not know or cannot read. The error gives the reason.
            Wrong(Box<ServiceError>),
            /// The message is not a call. The daemon closes the connection after this error.
            Junk(Box<Failure>),
        }

        impl Asked {
            fn read(
                interface: &str,
                name: &str,
                parameters: Option<&RawValue>,
            ) -> Option<Result<Self, ServiceError>> {
                match (interface, name) {
                    $(($interface, stringify!($call)) => Some(typed(parameters).map(Self::$call)),)*
                    _ => None,
                }
            }

            /// Whether the call has this trait.
            pub(crate) fn is(&self, asked: Trait) -> bool {
                let traits: &[Trait] = match self {
                    $(Self::$call(_) => &[$(Trait::$trait),*],)*
                    Self::Wrong(_) | Self::Junk(_) => &[Trait::IsUnrestricted, Trait::NeedsNoTable],
                };
                traits.contains(&asked)
            }
        }

        #[cfg(test)]
        const METHODS: &[(&str, &str)] = &[$(($interface, stringify!($call))),*];
    };
}

table_of_calls!(define_asked);

/// Parses a message.
///
/// # Errors
/// The message is not a call. The daemon cannot trust anything that follows it.
pub(crate) fn read(message: &[u8], fds: &mut Vec<OwnedFd>) -> Result<Call, FrameError> {
    let Incoming { method, parameters, more, oneway } = frame::parse(message)?;
    let (interface, name) = method.rsplit_once('.').unwrap_or_default();
    let asked = Asked::read(interface, name, parameters)
        .unwrap_or_else(|| Err(ServiceError::unknown(&method)))
        .unwrap_or_else(|error| Asked::Wrong(error.into()));
    let owner_fd = match &asked {
        Asked::Acquire(acquire) => acquire.owner_fd,
        Asked::Release(release) | Asked::WouldRelease(release) => release.owner_fd,
        _ => None,
    };
    // Descriptors may arrive before the message that they belong to, but never after it.
    let fds = if owner_fd.is_some() { std::mem::take(fds) } else { Vec::new() };
    let replies = match (more, oneway) {
        (_, true) => Replies::None,
        (true, false) => Replies::Many,
        (false, false) => Replies::One,
    };
    Ok(Call { asked, replies, fds })
}

fn typed<T: DeserializeOwned>(parameters: Option<&RawValue>) -> Result<T, ServiceError> {
    let parameters = parameters.map_or("{}", RawValue::get);
    serde_json::from_str(parameters).map_err(|error| wrong::<T>(parameters, &error))
}

/// The error for wrong parameters. It names the wrong parameter: a second parser reads the
/// parameters again and notes the path.
#[cold]
fn wrong<T: DeserializeOwned>(parameters: &str, error: &serde_json::Error) -> ServiceError {
    let mut reader = serde_json::Deserializer::from_str(parameters);
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Err(error) => ServiceError::invalid(error.path().to_string(), error.inner()),
        Ok(_) => ServiceError::InvalidParameter {
            parameter: "parameters".to_owned(),
            message: error.to_string(),
        },
    }
}

/// Most replies fit into this many bytes.
const USUAL_BYTES: usize = 512;

/// The final reply to a call. Its content may borrow from the daemon's state: the daemon serializes
/// it at once, so it needs no copy of that state.
#[derive(Debug)]
pub(crate) struct Answer {
    pub message: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// Whether the daemon closes the connection as soon as it has written the message.
    pub closes: bool,
}

impl Answer {
    pub(crate) fn reply<T: Serialize>(parameters: &T) -> Self {
        Self::followed(parameters, false)
    }

    /// A reply that announces whether another reply to the same call follows it.
    pub(crate) fn followed<T: Serialize>(parameters: &T, continues: bool) -> Self {
        Self::of(&Reply { parameters, continues, error: None })
    }

    /// An error that varlink defines.
    pub(crate) fn service_error(error: &ServiceError) -> Self {
        Self::of(&Reply { parameters: error, continues: false, error: Some(error.qualified()) })
    }

    /// An error of this interface.
    pub(crate) fn failure(failure: &Failure) -> Self {
        let error = Some(failure.name.qualified());
        Self::of(&Reply { parameters: failure, continues: false, error })
    }

    fn of<T: Serialize>(reply: &Reply<T>) -> Self {
        let mut message = Vec::with_capacity(USUAL_BYTES);
        let written = frame::append(reply, &mut message)
            .inspect_err(|error| tracing::error!(%error, "a reply has no JSON form"));
        Self { message, fds: Vec::new(), closes: written.is_err() }
    }
}

#[derive(Serialize)]
struct Reply<T> {
    parameters: T,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continues: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

new_key_type! {
    /// Identifies a connection. The id of a closed connection never becomes that of another.
    pub struct ConnId;
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_protocol::service::description;

    #[test]
    fn the_table_of_calls_has_the_methods_of_the_interfaces() {
        let interfaces = [INTERFACE, NODES_INTERFACE, SERVICE];
        let described = interfaces.iter().flat_map(|interface| {
            let lines = description(interface).unwrap().lines();
            let methods = lines.filter_map(|line| line.strip_prefix("method "));
            methods.map(|method| (*interface, method.split('(').next().unwrap()))
        });
        let (mut described, mut listed) = (described.collect::<Vec<_>>(), METHODS.to_vec());
        described.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, described);
    }

    fn asked(message: &str) -> Asked {
        read(message.as_bytes(), &mut Vec::new()).unwrap().asked
    }

    #[test]
    fn a_call_without_parameters_has_empty_parameters() {
        assert!(
            matches!(asked(r#"{"method":"io.canal.Lock.Status"}"#), Asked::Status(q) if q.key.is_none())
        );
        assert!(matches!(asked(r#"{"method":"org.varlink.service.GetInfo"}"#), Asked::GetInfo(_)));
    }

    #[test]
    fn unknown_parameters_are_ignored() {
        let release = r#"{"method":"io.canal.Lock.Release","parameters":{"all":true,"new":1}}"#;
        assert!(matches!(asked(release), Asked::Release(release) if release.all));
    }

    #[test]
    fn an_invalid_call_gets_an_error_and_other_bytes_get_none() {
        let missing = r#"{"method":"io.canal.Lock.Confirm","parameters":{}}"#;
        let wrong =
            |message| if let Asked::Wrong(error) = asked(message) { Some(*error) } else { None };
        assert!(matches!(
            wrong(missing),
            Some(ServiceError::InvalidParameter { parameter, .. }) if parameter == "tag"
        ));
        assert!(matches!(
            wrong(r#"{"method":"Status"}"#),
            Some(ServiceError::InterfaceNotFound { .. })
        ));
        for junk in ["", "[]", "x", r#"{"parameters":{}}"#, r#"{"method":1}"#] {
            assert!(read(junk.as_bytes(), &mut Vec::new()).is_err(), "{junk:?}");
        }
    }
}
