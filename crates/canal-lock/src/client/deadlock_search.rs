//! Waits for a plain lock within a run over nodes: a separate process, the *deadlock watcher*,
//! looks for deadlocks over the nodes.

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::calls::Client;
use super::channel::{End, Received, channel};
use super::connection::options::{Options, Start};
use crate::client::connection::daemon_program;
use canal_protocol::paths::{Place, Rule};
use canal_protocol::{Acquire, CycleStepInfo, ErrorName, Failure, Tag};

/// How long the request waits before it starts a process that looks.
const START_AFTER: Duration = Duration::from_secs(1);

/// How often to check for a deadlock.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The result of the process that looks.
#[derive(Serialize, Deserialize)]
pub enum Found {
    /// The request must end a deadlock.
    Deadlock {
        /// The deadlock, as text for the user.
        message: String,
        /// The ring, the waiting request first.
        cycle: Vec<CycleStepInfo>,
    },
    /// These nodes cannot be read, so a deadlock over them would not be found.
    Unread(Vec<String>),
}

/// The search for deadlocks on behalf of one request, which waits at the daemon of this machine.
#[derive(Debug)]
pub struct WaitWithin {
    /// Whether it waits within a run over nodes, and a program can look.
    is_within: bool,
    tag: Tag,
    place: Place,
    options: Options,
    since: Option<Instant>,
    /// The channel to the process that looks. The process ends with it.
    channel: Option<End>,
    /// The nodes that could not be read, until the user has been notified of them: a deadlock over
    /// them would not be found.
    pub unread: Option<Vec<String>>,
}

impl WaitWithin {
    /// The search for a request that this client sends.
    pub fn new(client: &Client, request: &Acquire) -> Self {
        let (is_within, tag) = (request.under_run.is_some(), request.tag);
        let (place, options) = (client.place.clone(), client.options.clone());
        Self { is_within, tag, place, options, since: None, channel: None, unread: None }
    }

    /// Called while the request waits. `again`: when the next call would come without this. Returns
    /// when it must come.
    ///
    /// # Errors
    /// The request must end a deadlock.
    pub fn turn(&mut self, again: Option<Duration>) -> Result<Option<Duration>, Box<Failure>> {
        if !self.is_within {
            return Ok(again);
        }
        let mut after = LOOK_EVERY;
        while let Some(channel) = &self.channel {
            match channel.receive() {
                Received::Message(Found::Deadlock { message, cycle }, _) => {
                    let (reason, cycle) = (Some("deadlock".into()), cycle.into());
                    let new = Failure::new(ErrorName::Refused, message);
                    return Err(Box::new(Failure { reason, cycle, ..new }));
                }
                Received::Message(Found::Unread(nodes), _) => self.unread = Some(nodes),
                Received::Nothing | Received::End => break,
            }
        }
        if self.channel.is_none() {
            let since = *self.since.get_or_insert_with(Instant::now);
            let left = START_AFTER.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.channel = self.start().ok();
                // Without a deadlock watcher, the request waits as if it were in no run.
                self.is_within = self.channel.is_some();
            }
            after = left.max(LOOK_EVERY);
        }
        Ok(Some(again.map_or(after, |again| again.min(after))))
    }

    /// Begins to look, in a process that may have several threads: the program, which is canal,
    /// looks. It takes the run from the environment.
    fn start(&self) -> io::Result<End> {
        let program = self.options.program.as_deref();
        let program = daemon_program::find(program).map_err(io::Error::other)?;
        let (ours, theirs) = channel()?;
        ours.send(&self.tag, &[]);
        let mut command = Command::new(program);
        command.arg("deadlock-watcher").stdin(theirs.0);
        if self.place.rule != Rule::Shared {
            command.arg("--socket").arg(&self.place.socket);
        }
        if self.options.start == Start::Never {
            command.arg("--no-start");
        }
        let mut between = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // If this process ignores SIGCHLD, the kernel has reaped it.
        let _ = between.wait();
        Ok(ours)
    }
}
