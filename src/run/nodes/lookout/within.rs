//! A request at the daemon of this machine that waits within a run over nodes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::protocol::{Acquire, ErrorName, Failure, RunId, Tag};

use super::{FoundDeadlock, Lookout};

/// How long the request waits before it starts a process that looks.
const START_AFTER: Duration = Duration::from_secs(1);

/// How often to check for a deadlock.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The search for deadlocks on behalf of one request.
pub struct WaitWithin<F> {
    /// The run over nodes within which it waits; `None` if there is none, or if no program can
    /// look.
    run: Option<RunId>,
    tag: Tag,
    since: Option<Instant>,
    lookout: Option<Lookout>,
    start: F,
}

impl<F: FnMut(RunId, Tag) -> Option<Lookout>> WaitWithin<F> {
    /// `start` begins to look, if that is possible here.
    pub fn new(request: &Acquire, start: F) -> Self {
        let Acquire { under_run: run, tag, .. } = *request;
        Self { run, tag, since: None, lookout: None, start }
    }

    /// Called while the request waits. `again`: when the next call would come without this. Returns
    /// when it must come.
    ///
    /// # Errors
    /// The request must end a deadlock.
    pub fn turn(&mut self, again: Option<Duration>) -> Result<Option<Duration>, Box<Failure>> {
        let Some(run) = self.run else { return Ok(again) };
        let since = *self.since.get_or_insert_with(Instant::now);
        let Some(lookout) = &mut self.lookout else {
            let left = START_AFTER.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.lookout = (self.start)(run, self.tag);
                // Without a lookout, the request waits as if it were in no run.
                self.run = self.run.filter(|_| self.lookout.is_some());
            }
            let after = left.max(LOOK_EVERY);
            return Ok(Some(again.map_or(after, |again| again.min(after))));
        };
        match lookout.found() {
            Some(found) => Err(Box::new(refused(found))),
            None => Ok(Some(again.map_or(LOOK_EVERY, |again| again.min(LOOK_EVERY)))),
        }
    }

    /// The nodes that could not be read, if that is news: a deadlock over them would not be found.
    pub fn unread(&mut self) -> Option<Vec<String>> {
        self.lookout.as_mut()?.unread.take()
    }
}

impl<F> fmt::Debug for WaitWithin<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, tag, lookout, .. } = self;
        write!(f, "WaitWithin {{ run: {run:?}, tag: {tag:?}, lookout: {lookout:?} }}")
    }
}

fn refused(found: FoundDeadlock) -> Failure {
    let mut failure = Failure::new(ErrorName::Refused, found.message);
    failure.reason = Some("deadlock".into());
    failure.cycle = found.cycle.into();
    failure
}
