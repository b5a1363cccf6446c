//! Chooses the session of a request: the session of the enclosing `canal run`, or a new one.

use clap::Args;

use crate::client::environment;
use crate::client::nodes::lease::EnclosingLeases;
use crate::protocol::{Acquire, Grant, RunId};

/// The options that choose the session.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Which lock")]
pub(crate) struct SessionArgs {
    /// Start a new session
    ///
    /// Locks held by an enclosing canal command then block this request like any other.
    #[arg(long, hide_short_help = true)]
    pub(crate) new_session: bool,
}

/// The enclosing session and frame, from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Enclosing {
    pub(crate) session: Option<String>,
    pub(crate) frame: Option<String>,
    /// The enclosing run at nodes.
    pub(crate) run: Option<RunId>,
}

impl SessionArgs {
    /// The session and frame that enclose the request; none with `--new-session`.
    pub(crate) fn enclosing(self) -> Enclosing {
        if self.new_session {
            return Enclosing::default();
        }
        let [session, frame] = [environment::SESSION, environment::FRAME]
            .map(|name| std::env::var_os(name)?.into_string().ok());
        Enclosing { session, frame, run: environment::run() }
    }

    /// The leases at nodes that enclose the request; none with `--new-session`.
    pub(crate) fn enclosing_leases(self) -> EnclosingLeases {
        match self.new_session {
            true => EnclosingLeases::default(),
            false => EnclosingLeases::of_environment(),
        }
    }
}

/// The message for a request whose enclosing frame the daemon did not accept.
pub(crate) fn not_believed(request: &Acquire, grant: &Grant) -> Option<String> {
    let (session, frame) = (request.session.as_ref()?, request.frame.as_ref()?);
    (*session != grant.session).then(|| {
        let new = &grant.session;
        format!(
            "began session {new} instead of {session}, because CANAL_FRAME={frame} does not \
             enclose this process"
        )
    })
}

/// The message if `--new-session` has no effect because the process already belongs to the session
/// of its earlier locks. This happens if canal becomes its command, and the command is canal again.
pub(crate) fn not_new(request: &Acquire, grant: &Grant) -> Option<String> {
    let session = request.session.is_none().then(inherited)??;
    same_process(&session, grant)
}

/// The session in the environment.
pub(crate) fn inherited() -> Option<String> {
    std::env::var_os(environment::SESSION)?.into_string().ok()
}

fn same_process(session: &str, grant: &Grant) -> Option<String> {
    (*session == *grant.session).then(|| {
        format!(
            "--new-session has no effect: process {} itself took the locks of session {session}",
            grant.owner.pid
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::OwnerInfo;

    #[test]
    fn another_session_than_the_named_one_is_reported() {
        let mut request = Acquire {
            session: Some("s3".to_owned()),
            frame: Some("f4".to_owned()),
            ..Acquire::default()
        };
        let mut grant = Grant {
            owner: OwnerInfo { pid: 1, command: String::new() },
            session: "s3".to_owned(),
            frame: "f5".to_owned(),
            ..Grant::default()
        };
        assert_eq!(not_believed(&request, &grant), None);
        grant.session = "s5".to_owned();
        let message = not_believed(&request, &grant).unwrap();
        assert!(
            message.starts_with("began session s5 instead of s3, because CANAL_FRAME=f4"),
            "{message}"
        );
        assert_eq!(same_process("s3", &grant), None);
        let message = same_process("s5", &grant).unwrap();
        assert!(message.starts_with("--new-session has no effect: process 1"), "{message}");
        assert_eq!(not_new(&request, &grant), None, "it asked for no new one");
        request.frame = None;
        assert_eq!(not_believed(&request, &grant), None);
    }

    #[test]
    fn a_new_session_is_enclosed_by_nothing() {
        assert_eq!(SessionArgs { new_session: true }.enclosing(), Enclosing::default());
    }
}
