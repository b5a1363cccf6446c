//! The options of a request besides its locks and its note: its session, and how long it waits; and
//! the handle of an existing lease.

use std::io::{self, BufRead};

use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};

use crate::cli::{Failed, Result};
use crate::client::command_environment;
use crate::client::nodes::lease::{EnclosingLeases, LEASE_HANDLE_CHARS_MAX, LeaseHandle};
use crate::protocol::{Acquire, GROUP_BYTES_MAX, Grant, Handle, Superseded};
use crate::safe_text::is_unsafe;

use super::keys_and_sizes::LockArgs;
use super::note::NoteArgs;
use super::parse_value::{self, Length, exit_code, number, one_of, priority};

/// The options of a request.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RequestArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) note: NoteArgs,
}

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

impl SessionArgs {
    /// Makes a request part of what encloses it; of nothing with `--new-session`.
    pub(crate) fn join(self, request: &mut Acquire) {
        if !self.new_session {
            command_environment::join(request);
        }
    }

    /// The name of the session or frame that encloses the request, from this variable of the
    /// environment; none with `--new-session`.
    pub(crate) fn enclosing(self, variable: &str) -> Option<String> {
        std::env::var(variable).ok().filter(|_| !self.new_session)
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
pub(crate) fn not_new(request: &Acquire, grant: &Grant, outer: Option<String>) -> Option<String> {
    let session = outer.filter(|it| request.session.is_none() && *it == grant.session)?;
    let pid = grant.owner.pid;
    Some(format!(
        "--new-session has no effect: process {pid} itself took the locks of session {session}"
    ))
}

/// The session in the environment.
pub(crate) fn inherited() -> Option<String> {
    std::env::var(command_environment::SESSION).ok()
}

/// The options for the wait.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "How to wait")]
pub(crate) struct WaitArgs {
    /// Exit with 75 at once if the lock is not free
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait at most DUR, such as 10, 500ms or 1h30m [default: infinity]
    ///
    /// Then exit with 75. A number without a unit is in seconds; 0 means do not wait.
    #[arg(short = 'w', long, value_name = "DUR", value_parser = parse_value::length, allow_negative_numbers = true)]
    pub(crate) wait: Option<Length>,
    /// Exit with N instead of 75; 0 skips quietly
    ///
    /// This applies when the lock is busy or paused, when the wait times out, when too many
    /// requests are already waiting (--max-waiting), and when a newer request supersedes this one.
    #[arg(short = 'E', long, value_name = "N", value_parser = exit_code, allow_negative_numbers = true)]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Go ahead of waiters with a lower priority [default: 0]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Exit with 75 if N or more requests are already waiting
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = number, allow_negative_numbers = true)]
    pub(crate) max_waiting: Option<u64>,
    /// Withdraw your older requests for the same keys, or in the same --group
    ///
    /// The older requests exit with 75. With `running`, canal also ends the commands that hold the
    /// lock.
    #[arg(long, hide_short_help = true, value_name = "WHICH", value_parser = superseded())]
    pub(crate) supersede: Option<Superseded>,
    /// The group in which --supersede looks for older requests
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = group)]
    pub(crate) group: Option<String>,
    /// How to show progress while waiting [default: auto]
    #[arg(long, hide_short_help = true, value_name = "HOW", value_enum)]
    pub(crate) progress: Option<ProgressArg>,
    /// Keep waiting even if nothing reads stdout and stderr
    #[arg(long, hide_short_help = true)]
    pub(crate) unattended: bool,
}

/// The older requests that --supersede names.
fn superseded() -> impl TypedValueParser<Value = Superseded> {
    let running = "Requests that are still waiting, and commands that are running";
    one_of([
        ("waiting", "Requests that are still waiting", Superseded::Waiting),
        ("running", running, Superseded::Running),
    ])
}

/// The ways to show a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressArg {
    /// A status line on a terminal, log lines elsewhere
    #[default]
    Auto,
    /// A status line on a terminal, nothing elsewhere
    Tty,
    /// Log lines, even on a terminal
    Log,
    /// Nothing
    None,
}

impl WaitArgs {
    /// The wait in the form of the protocol: 0 means not to wait, `None` means without end.
    pub(crate) fn wait_ms(&self) -> Option<u64> {
        if self.no_wait { Some(0) } else { self.wait.flatten().map(parse_value::millis) }
    }
}

/// The name of a group.
fn group(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a group name cannot be empty".to_owned()),
        bytes if bytes > GROUP_BYTES_MAX => Err(format!(
            "a group name can have at most {GROUP_BYTES_MAX} bytes; this one has {bytes}"
        )),
        _ if text.chars().any(is_unsafe) => {
            Err("a group name cannot contain control characters".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

/// The variable that passes the handle to later steps, and to `canal renew` and `canal release`.
pub(crate) const HANDLE: &str = "CANAL_HANDLE";

/// The limit for a line that contains a handle.
const LINE_BYTES_MAX: u64 = LEASE_HANDLE_CHARS_MAX as u64 + 1024;

/// The handle of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GivenHandle {
    /// A handle that a daemon granted.
    OfDaemon(Handle),
    /// A handle of a lease at nodes.
    OverNodes(Box<LeaseHandle>),
}

/// The options that choose the lease.
#[derive(Args, Clone, Debug)]
pub(crate) struct HandleArgs {
    /// The lease's handle, or - for standard input [default: $CANAL_HANDLE]
    ///
    /// A handle that is read from standard input does not show up in process lists.
    #[arg(long, value_name = "H", allow_hyphen_values = true)]
    // Kept as text, so that an error message does not repeat it.
    pub(crate) handle: Option<String>,
}

impl HandleArgs {
    /// The handle in the option, or else in the environment.
    pub(crate) fn read(&self) -> Result<Option<GivenHandle>> {
        let (text, source) = match self.handle.as_deref() {
            Some("-") => {
                let mut line = String::new();
                let read = io::Read::take(io::stdin().lock(), LINE_BYTES_MAX).read_line(&mut line);
                read.map_err(|error| Failed::new(format!("cannot read standard input: {error}")))?;
                (line, "the handle on standard input")
            }
            Some(given) => (given.to_owned(), "--handle"),
            None => match std::env::var(HANDLE) {
                Ok(given) if !given.is_empty() => (given, HANDLE),
                _ => return Ok(None),
            },
        };
        let text = text.trim();
        let handle = match LeaseHandle::is_meant(text) {
            true => {
                let handle = text.parse::<LeaseHandle>().map_err(|what| what.to_string());
                handle.map(Box::new).map(GivenHandle::OverNodes)
            }
            false => text.parse().map(GivenHandle::OfDaemon).map_err(str::to_owned),
        };
        handle.map(Some).map_err(|what| {
            Failed::new(format!("{source}: {what}"))
                .hint("take a lease with `canal acquire --ttl`, which prints its handle")
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::OwnerInfo;

    use super::*;

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
        let new = Acquire::default();
        assert_eq!(not_new(&new, &grant, Some("s3".to_owned())), None);
        let inherited = Some("s5".to_owned());
        let message = not_new(&new, &grant, inherited.clone()).unwrap();
        assert!(message.starts_with("--new-session has no effect: process 1"), "{message}");
        assert_eq!(not_new(&request, &grant, inherited), None, "it asked for no new one");
        request.frame = None;
        assert_eq!(not_believed(&request, &grant), None);
    }

    #[test]
    fn a_new_session_is_enclosed_by_nothing() {
        let new = SessionArgs { new_session: true };
        for variable in [command_environment::SESSION, command_environment::FRAME, "PATH"] {
            assert_eq!(new.enclosing(variable), None);
        }
        let mut request = Acquire::default();
        new.join(&mut request);
        assert_eq!(request, Acquire::default());
    }

    #[test]
    fn an_invalid_handle_is_not_repeated_in_the_error() {
        let args = HandleArgs { handle: Some("0123secret".to_owned()) };
        let failed = args.read().unwrap_err();
        assert_eq!(failed.message, "--handle: a handle is 32 hexadecimal digits");
        let args = HandleArgs { handle: Some(format!(" {:032x}\n", 7)) };
        assert_eq!(args.read().unwrap(), Some(GivenHandle::OfDaemon(Handle::new(7))));
        let args = HandleArgs { handle: Some("n0123secret".to_owned()) };
        let failed = args.read().unwrap_err();
        assert_eq!(failed.message, "--handle: the handle is incomplete or has been altered");
    }
}
