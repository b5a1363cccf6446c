//! Ends the commands that a request with `--supersede running` supersedes.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::ending::Ending;
use super::{processes, refusal, sent, wait_for};
use crate::cli::source::Witness;
use crate::cli::{Failed, Length, Result, Target};
use crate::protocol::{Acquire, Grant, Progress, Superseded, WouldKill};

/// How long the commands have after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Ends the commands once the request has its place in the queue, or its grant. Passes each event
/// on to the next witness.
pub(crate) struct EndSuperseded<'a, 'w> {
    target: &'a Target,
    request: &'a Acquire,
    next: Option<&'w mut dyn Witness>,
    is_pending: bool,
}

impl<'a, 'w> EndSuperseded<'a, 'w> {
    pub(crate) fn new(
        target: &'a Target,
        request: &'a Acquire,
        next: Option<&'w mut dyn Witness>,
    ) -> Self {
        let is_pending = request.supersede == Some(Superseded::Running);
        Self { target, request, next, is_pending }
    }

    fn end(&mut self) -> Result {
        match std::mem::take(&mut self.is_pending) {
            true => end_superseded(self.target, self.request),
            false => Ok(()),
        }
    }
}

impl Witness for EndSuperseded<'_, '_> {
    fn waits(&mut self, progress: &Progress) -> Result {
        if let Some(next) = &mut self.next {
            next.waits(progress)?;
        }
        // Before that, the request may not be in the log.
        if progress.position > 0 { self.end() } else { Ok(()) }
    }

    fn granted(&mut self, grant: &Grant) -> Result {
        self.end()?;
        self.next.as_mut().map_or(Ok(()), |next| next.granted(grant))
    }
}

/// Sends SIGTERM to the commands that a request supersedes, and SIGKILL to those that still run
/// after 10 s. Returns once all have ended.
fn end_superseded(target: &Target, request: &Acquire) -> Result {
    let verbosity = target.verbosity;
    // The client of the request waits on its connection.
    let mut client = target.connect()?;
    let asked = WouldKill { superseded_by: Some(request.tag), ..WouldKill::default() };
    let found = client.would_kill(&asked)?;
    found.targets.iter().try_for_each(refusal)?;
    let endings = processes(&found.targets).into_iter();
    let endings = endings.map(|target| Ending::find(&mut client, target));
    let mut endings = endings.collect::<Result<Vec<_>, _>>()?;
    for ending in &mut endings {
        let refused = ending.signal(&mut client, Signal::SIGTERM)?;
        verbosity.note(&format!("{}: superseded", sent(ending.target, Signal::SIGTERM)));
        refused.iter().for_each(|line| verbosity.message(line));
    }
    let grace = Some(Length::Finite(GRACE));
    match wait_for(&mut endings, Signal::SIGTERM, grace, verbosity).as_slice() {
        [] => Ok(()),
        [left, ..] => Err(Failed::new(format!("{} cannot be ended", left.shown()))),
    }
}
