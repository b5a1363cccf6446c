//! Which session a request belongs to: that of the `canal run` around it, or a new one.

use clap::Args;

use crate::protocol::{Acquire, Grant};

/// What `canal run` tells its command of the session and of the frame in it.
const VARIABLES: [&str; 2] = ["CANAL_SESSION", "CANAL_FRAME"];

/// Which session.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Which lock")]
pub(crate) struct SessionArgs {
    /// Begin a session of its own, also within a command that canal runs: locks of the enclosing
    /// one are then in its way as anybody else's are
    #[arg(long)]
    pub(crate) new_session: bool,
}

/// The enclosing session and frame, as the environment names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Enclosing {
    pub(crate) session: Option<String>,
    pub(crate) frame: Option<String>,
}

impl SessionArgs {
    /// What encloses the request; nothing with `--new-session`.
    pub(crate) fn enclosing(self) -> Enclosing {
        if self.new_session {
            return Enclosing::default();
        }
        let [session, frame] = VARIABLES.map(|name| std::env::var(name).ok());
        Enclosing { session, frame }
    }
}

/// What is to be said if the daemon did not believe that the request is enclosed.
pub(crate) fn not_believed(request: &Acquire, grant: &Grant) -> Option<String> {
    let (session, frame) = (request.session.as_ref()?, request.frame.as_ref()?);
    (*session != grant.session).then(|| {
        let new = &grant.session;
        format!("a new session: {new} is not part of {session}, whose process that took the lock of CANAL_FRAME={frame} has ended or is not above this one")
    })
}
