//! What a message asks of the daemon.

use std::borrow::Cow;
use std::os::fd::OwnedFd;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::underway::Patience;
use crate::protocol::frame::{self, FrameError};
use crate::protocol::service::{DescriptionQuery, SERVICE, ServiceError};
use crate::protocol::{
    Acquire, Confirm, Failure, GraphQuery, INTERFACE, PageQuery, Release, Renew, Resize,
    StatusQuery, Stop, WhyQuery,
};
use crate::sys::clock;

/// A call, read and understood as far as its form goes.
#[derive(Debug)]
pub(super) struct Call {
    /// What is asked.
    pub(super) asked: Asked,
    /// Whether the caller takes several replies.
    pub(super) more: bool,
    /// Whether the caller wants no reply.
    pub(super) oneway: bool,
    /// The descriptors that came with it.
    pub(super) fds: Vec<OwnedFd>,
}

/// What [`protocol::Call`](crate::protocol::Call) owns, as it stands in a message: its parameters
/// are read when it is known what they are.
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

/// What is asked.
#[derive(Debug)]
pub(super) enum Asked {
    Acquire(Box<Acquire>),
    Confirm(Confirm),
    Description(DescriptionQuery),
    Graph(GraphQuery),
    Info,
    Page(PageQuery),
    Release(Release),
    Renew(Renew),
    Resize(Resize),
    Status(StatusQuery),
    Stop(Stop),
    Why(WhyQuery),
    /// Nothing that is known here; the error says why.
    Wrong(ServiceError),
    /// No call at all: the connection ends with these words.
    Junk(Failure),
}

impl Call {
    /// Stands for what is no call.
    pub(super) fn last_words(failure: Failure) -> Self {
        Self { asked: Asked::Junk(failure), more: false, oneway: false, fds: Vec::new() }
    }
}

impl Call {
    /// Of a request that may wait: what it is to be told while the log keeps it.
    pub(super) fn patience(&self) -> Option<Patience> {
        let Asked::Acquire(acquire) = &self.asked else { return None };
        let until = match acquire.wait_ms {
            Some(0) => return None,
            wait_ms => wait_ms.map(|wait_ms| clock::boottime_ms().saturating_add(wait_ms)),
        };
        let key = acquire.items.first().map_or_else(String::new, |item| item.key.clone());
        Some(Patience { until, untold: self.more, key })
    }
}

impl Asked {
    /// Whether it cannot be served without the log.
    pub(super) fn needs_log(&self) -> bool {
        match self {
            Self::Acquire(_)
            | Self::Confirm(_)
            | Self::Page(_)
            | Self::Release(_)
            | Self::Renew(_)
            | Self::Resize(_) => true,
            Self::Description(_)
            | Self::Graph(_)
            | Self::Info
            | Self::Status(_)
            | Self::Stop(_)
            | Self::Why(_)
            | Self::Wrong(_)
            | Self::Junk(_) => false,
        }
    }

    /// Whether it is served before what others ask for: it gives something back, or keeps a lease
    /// from being over.
    pub(super) fn goes_first(&self) -> bool {
        matches!(self, Self::Release(_) | Self::Renew(_))
    }
}

/// Reads a message.
///
/// # Errors
/// If it is no call at all; then nothing after it can be trusted.
pub(super) fn read(message: &[u8], fds: &mut Vec<OwnedFd>) -> Result<Call, FrameError> {
    let call: Incoming<'_> = frame::parse(message)?;
    let asked = understand(&call.method, call.parameters).unwrap_or_else(Asked::Wrong);
    let owner_fd = match &asked {
        Asked::Acquire(acquire) => acquire.owner_fd,
        Asked::Release(release) => release.owner_fd,
        _ => None,
    };
    // Descriptors may come before the message that they belong to, never after it.
    let fds = if owner_fd.is_some() { std::mem::take(fds) } else { Vec::new() };
    Ok(Call { asked, more: call.more, oneway: call.oneway, fds })
}

fn understand(method: &str, parameters: Option<&RawValue>) -> Result<Asked, ServiceError> {
    let unknown = || ServiceError::unknown(method);
    let (interface, name) = method.rsplit_once('.').ok_or_else(unknown)?;
    match (interface, name) {
        (INTERFACE, "Acquire") => typed(parameters).map(|it| Asked::Acquire(Box::new(it))),
        (INTERFACE, "Confirm") => typed(parameters).map(Asked::Confirm),
        (INTERFACE, "Graph") => typed(parameters).map(Asked::Graph),
        (INTERFACE, "Page") => typed(parameters).map(Asked::Page),
        (INTERFACE, "Release") => typed(parameters).map(Asked::Release),
        (INTERFACE, "Renew") => typed(parameters).map(Asked::Renew),
        (INTERFACE, "Resize") => typed(parameters).map(Asked::Resize),
        (INTERFACE, "Status") => typed(parameters).map(Asked::Status),
        (INTERFACE, "Stop") => typed(parameters).map(Asked::Stop),
        (INTERFACE, "Why") => typed(parameters).map(Asked::Why),
        (SERVICE, "GetInfo") => Ok(Asked::Info),
        (SERVICE, "GetInterfaceDescription") => typed(parameters).map(Asked::Description),
        _ => Err(unknown()),
    }
}

fn typed<T: DeserializeOwned>(parameters: Option<&RawValue>) -> Result<T, ServiceError> {
    let parameters = parameters.map_or("{}", RawValue::get);
    serde_json::from_str(parameters).map_err(|error| ServiceError::invalid(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(message: &str) -> Asked {
        read(message.as_bytes(), &mut Vec::new()).unwrap().asked
    }

    #[test]
    fn a_call_without_parameters_has_the_empty_ones() {
        assert!(
            matches!(asked(r#"{"method":"io.canal.Lock.Status"}"#), Asked::Status(q) if q.key.is_none())
        );
        assert!(matches!(asked(r#"{"method":"org.varlink.service.GetInfo"}"#), Asked::Info));
    }

    #[test]
    fn unknown_parameters_are_ignored() {
        let release = r#"{"method":"io.canal.Lock.Release","parameters":{"all":true,"new":1}}"#;
        assert!(matches!(asked(release), Asked::Release(release) if release.all));
    }

    #[test]
    fn wrong_calls_are_answered_and_what_is_no_call_is_not() {
        let missing = r#"{"method":"io.canal.Lock.Confirm","parameters":{}}"#;
        assert!(matches!(
            asked(missing),
            Asked::Wrong(ServiceError::InvalidParameter { parameter, .. }) if parameter == "tag"
        ));
        assert!(matches!(
            asked(r#"{"method":"Status"}"#),
            Asked::Wrong(ServiceError::InterfaceNotFound { .. })
        ));
        for junk in ["", "[]", "x", r#"{"parameters":{}}"#, r#"{"method":1}"#] {
            assert!(read(junk.as_bytes(), &mut Vec::new()).is_err(), "{junk:?}");
        }
    }
}
