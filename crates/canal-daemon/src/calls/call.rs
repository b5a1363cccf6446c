//! The calls that clients send, read from messages, and the final replies to them.

use std::borrow::Cow;
use std::fmt;
use std::os::fd::OwnedFd;

use serde::de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use slotmap::new_key_type;

use crate::calls::table::table_of_calls;
use crate::wording::bad;
use canal_protocol::frame::{self, FrameError};
use canal_protocol::service::{DescriptionQuery, SERVICE, ServiceError};
use canal_protocol::{
    Abandon, Acquire, Collect, Confirm, ConfirmAt, DeadlinePageQuery, EndedLeasesQuery, Failure,
    GraphQuery, HistoryQuery, HistoryStatsQuery, INTERFACE, Kill, LeaderQuery, NODES_INTERFACE,
    Prioritize, Release, Renew, Report, Resize, Restrict, StatusQuery, Stop, WaitsNear, WhyQuery,
    WouldAcquire, WouldKill, Wrapper,
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

impl Replies {
    fn of(more: bool, oneway: bool) -> Self {
        match (more, oneway) {
            (_, true) => Self::None,
            (true, false) => Self::Many,
            (false, false) => Self::One,
        }
    }
}

/// A [`protocol::Call`](canal_protocol::Call) that borrows from its message. The daemon parses the
/// parameters once it knows the method.
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

impl Call {
    /// Represents a message that is not a call.
    pub(crate) fn last_words(failure: Failure) -> Self {
        Self { asked: Asked::Junk(Box::new(failure)), replies: Replies::One, fds: Vec::new() }
    }
}

impl Asked {
    /// Whether a host that rests must read the log before it serves the call.
    pub(crate) fn needs_news(&self) -> bool {
        match self {
            // Over an engine, the daemon refuses it whatever the table says.
            Self::Acquire(acquire) => acquire.wrapper != Some(Wrapper::Exec),
            _ => !self.is(Trait::NeedsNoTable),
        }
    }
}

/// Parses a message.
///
/// # Errors
/// The message is not a call. The daemon cannot trust anything that follows it.
pub(crate) fn read(message: &[u8], fds: &mut Vec<OwnedFd>) -> Result<Call, FrameError> {
    let mut call = match serde_json::from_slice(message) {
        Ok(OnePass(call)) => call,
        Err(_) => read_any(message)?,
    };
    let owner_fd = match &call.asked {
        Asked::Acquire(acquire) => acquire.owner_fd,
        Asked::Release(release) | Asked::WouldRelease(release) => release.owner_fd,
        _ => None,
    };
    // Descriptors may arrive before the message that they belong to, but never after it.
    if owner_fd.is_some() {
        call.fds = std::mem::take(fds);
    }
    Ok(call)
}

/// An `Acquire` or a `Release` whose method precedes its parameters; both are parsed in a single
/// pass. Everything else is an error here, even wrong parameters. [`read_any`] then parses the
/// message or explains what is wrong with it.
struct OnePass(Call);

impl<'a> Deserialize<'a> for OnePass {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OnePassVisitor).map(Self)
    }
}

struct OnePassVisitor;

impl<'a> Visitor<'a> for OnePassVisitor {
    type Value = Call;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a call, its method first")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<Call, M::Error> {
        let left = |what| M::Error::custom(what);
        if map.next_key::<&str>()? != Some("method") {
            return Err(left("another order"));
        }
        let method: &str = map.next_value()?;
        let (mut asked, mut more, mut oneway) = (None, None, None);
        while let Some(name) = map.next_key::<&str>()? {
            match (name, method) {
                ("parameters", "io.canal.Lock.Acquire") if asked.is_none() => {
                    asked = Some(Asked::Acquire(map.next_value()?));
                }
                ("parameters", "io.canal.Lock.Release") if asked.is_none() => {
                    asked = Some(Asked::Release(map.next_value()?));
                }
                ("more", _) if more.is_none() => more = Some(map.next_value()?),
                ("oneway", _) if oneway.is_none() => oneway = Some(map.next_value()?),
                _ => return Err(left("another field")),
            }
        }
        let asked = asked.ok_or_else(|| left("no parameters"))?;
        let replies = Replies::of(more.unwrap_or_default(), oneway.unwrap_or_default());
        Ok(Call { asked, replies, fds: Vec::new() })
    }
}

fn read_any(message: &[u8]) -> Result<Call, FrameError> {
    let Incoming { method, parameters, more, oneway } = frame::parse(message)?;
    let asked = understand(&method, parameters).unwrap_or_else(|error| Asked::Wrong(error.into()));
    Ok(Call { asked, replies: Replies::of(more, oneway), fds: Vec::new() })
}

fn understand(method: &str, parameters: Option<&RawValue>) -> Result<Asked, ServiceError> {
    let unknown = || ServiceError::unknown(method);
    let (interface, name) = method.rsplit_once('.').ok_or_else(unknown)?;
    Asked::read(interface, name, parameters).unwrap_or_else(|| Err(unknown()))
}

fn typed<T: DeserializeOwned>(parameters: Option<&RawValue>) -> Result<T, ServiceError> {
    let parameters = parameters.map_or("{}", RawValue::get);
    serde_json::from_slice(parameters.as_bytes()).map_err(|error| wrong::<T>(parameters, &error))
}

/// The error for wrong parameters. It names the wrong parameter: a second parser reads the
/// parameters again and notes the path.
#[cold]
fn wrong<T: DeserializeOwned>(parameters: &str, error: &serde_json::Error) -> ServiceError {
    let mut reader = serde_json::Deserializer::from_slice(parameters.as_bytes());
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Err(error) => ServiceError::invalid(error.path().to_string(), error.inner()),
        Ok(_) => ServiceError::InvalidParameter {
            parameter: "parameters".to_owned(),
            message: error.to_string(),
        },
    }
}

/// The descriptor that a call refers to by its index among the descriptors of the call.
pub(crate) fn nth_fd(fds: Vec<OwnedFd>, index: u32) -> Result<OwnedFd, Failure> {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    fds.into_iter().nth(index).ok_or_else(|| {
        let message = format!("the call names descriptor {index}, which did not come with it");
        bad(message)
    })
}

/// Most replies fit into this many bytes.
const USUAL_BYTES: usize = 512;

/// The final reply to a call. Its content may borrow from the daemon's state: the daemon serializes
/// it at once, so it needs no copy of that state.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The message; `None` if it has no JSON form.
    pub message: Option<Vec<u8>>,
    pub fds: Vec<OwnedFd>,
    /// Whether the daemon closes the connection as soon as it has written the message.
    pub closes: bool,
}

impl Answer {
    pub(crate) fn reply<T: Serialize>(parameters: &T) -> Self {
        Self::with_fds(parameters, Vec::new())
    }

    /// A reply with descriptors.
    pub(crate) fn with_fds<T: Serialize>(parameters: &T, fds: Vec<OwnedFd>) -> Self {
        Self { message: written(parameters, Follows::Nothing), fds, closes: false }
    }

    /// A serialized report.
    pub(crate) fn report(message: Option<Vec<u8>>) -> Self {
        Self { message, fds: Vec::new(), closes: false }
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

    fn of<T: Serialize>(reply: &Reply<&T>) -> Self {
        Self::report(bytes_of(reply))
    }
}

/// What follows a reply to a call, which the reply announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    Nothing,
    /// Another reply to the same call.
    More,
}

/// Serializes a reply. `None` if it has no JSON form.
pub(crate) fn written<T: Serialize>(parameters: &T, follows: Follows) -> Option<Vec<u8>> {
    bytes_of(&Reply { parameters, continues: follows == Follows::More, error: None })
}

fn bytes_of<T: Serialize>(reply: &Reply<T>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    match frame::append(reply, &mut bytes) {
        Ok(()) => Some(bytes),
        Err(error) => {
            tracing::error!(%error, "a reply has no JSON form");
            None
        }
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

    fn read_at_once(call: &[u8]) -> Option<Call> {
        serde_json::from_slice(call).ok().map(|OnePass(call)| call)
    }

    /// `read_any` parses in two passes the calls that `OnePass` cannot parse in one.
    #[test]
    fn the_fast_and_the_full_reader_read_a_call_alike() {
        let parameters = [
            r#"{"tag":"000102030405060708090a0b0c0d0e0f","items":[{"key":"a/b","per":1,"buckets":2},{"key":"é","mode":"write"}],"wait_ms":0,"priority":2,"max_run_ms":5,"command":"make","note":"run 7","with_children":true,"frame":"f1","wrapper":"exec","on_lost":"term"}"#,
            r#"{"tag":"000102030405060708090a0b0c0d0e0f","items":[],"command":"","lease":{"handle":"000102030405060708090A0B0C0D0E0F","ttl_ms":5000}}"#,
            r#"{"key":"a"}"#,
            r#"{"token":3,"all":false}"#,
            r#"{"handle":"000102030405060708090a0b0c0d0e0f","owner_fd":0}"#,
        ];
        for (method, parameters) in
            ["Acquire", "Release"].iter().flat_map(|m| parameters.map(|p| (m, p)))
        {
            for end in
                ["}", ",\"more\":true}", ",\"oneway\":true}", ",\"more\":true,\"oneway\":true}"]
            {
                let call = format!(
                    "{{\"method\":\"io.canal.Lock.{method}\",\"parameters\":{parameters}{end}"
                );
                let usual = read_any(call.as_bytes()).unwrap();
                match read_at_once(call.as_bytes()) {
                    Some(call) => assert_eq!(format!("{call:?}"), format!("{usual:?}")),
                    None => assert!(matches!(usual.asked, Asked::Wrong(_)), "{call}"),
                }
            }
        }
    }

    #[test]
    fn the_fast_reader_leaves_truncated_and_unusual_calls_to_the_full_one() {
        let whole = r#"{"method":"io.canal.Lock.Release","parameters":{"all":true},"more":true}"#;
        assert!(read_at_once(whole.as_bytes()).is_some());
        for end in 0..whole.len() {
            assert!(read_at_once(&whole.as_bytes()[..end]).is_none(), "{end}");
        }
        for other in [
            r#"{"method":"io.canal.Lock.Release","parameters":{"all":true}}}"#,
            r#"{"method":"io.canal.Lock.Release","parameters":{"all":true},"more":true,"more":true}"#,
            r#"{"method":"io.canal.Lock.Release","parameters":{"all":true},"upgrade":true}"#,
            r#"{"method":"io.canal.Lock.Release","parameters":null}"#,
            r#"{"method":"io.canal.Lock.Release"}"#,
            r#"{"parameters":{"all":true},"method":"io.canal.Lock.Release"}"#,
            r#"{"method":"io.canal.Lock.Stop","parameters":{}}"#,
        ] {
            assert!(read_at_once(other.as_bytes()).is_none(), "{other}");
        }
    }
}
