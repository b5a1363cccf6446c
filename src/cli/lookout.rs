//! Looking for deadlocks over nodes while a plain request waits within a run over nodes.

use std::time::{Duration, Instant};

use super::commands::nodes::list::near;
use super::connect::Target;
use crate::client::nodes::pins::Pins;
use crate::protocol::{Acquire, ErrorName, Failure, RunId, Tag};
use crate::run::nodes::{Around, FoundDeadlock, Lookout};

/// How long the request waits before anything is started for this.
const START_AFTER: Duration = Duration::from_secs(1);

/// How often it is looked whether a deadlock was found.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What looks for deadlocks on behalf of one request.
pub(super) struct WaitWithin<'a> {
    target: &'a Target,
    /// The run over nodes within which it waits; `None` if it waits within none, or nothing can look.
    run: Option<RunId>,
    tag: Tag,
    since: Option<Instant>,
    lookout: Option<Lookout>,
}

impl<'a> WaitWithin<'a> {
    pub(super) fn new(target: &'a Target, request: &Acquire) -> Self {
        let Acquire { under_run: run, tag, .. } = *request;
        Self { target, run, tag, since: None, lookout: None }
    }

    /// Called while the request waits. `again`: when it would be called again without this. Returns when it
    /// has to be.
    ///
    /// # Errors
    /// The request has to end a deadlock.
    pub(super) fn turn(
        &mut self,
        again: Option<Duration>,
    ) -> Result<Option<Duration>, Box<Failure>> {
        let Some(run) = self.run else { return Ok(again) };
        let since = *self.since.get_or_insert_with(Instant::now);
        let Some(lookout) = &self.lookout else {
            let left = START_AFTER.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.start(run);
            }
            let after = left.max(LOOK_EVERY);
            return Ok(Some(again.map_or(after, |again| again.min(after))));
        };
        match lookout.found() {
            Some(found) => Err(Box::new(refused(found))),
            None => Ok(Some(again.map_or(LOOK_EVERY, |again| again.min(LOOK_EVERY)))),
        }
    }

    /// Starts to look. Without it the request waits as if it were in no run.
    fn start(&mut self, run: RunId) {
        let place = &self.target.place;
        let (pins, here, options) = (Pins::of(place), place.clone(), self.target.options());
        let started = near(self.target).ok().and_then(|near| {
            let around = Around { near, pins, here, options };
            Lookout::start(&around, run, self.tag).ok()
        });
        match started {
            Some(lookout) => self.lookout = Some(lookout),
            None => self.run = None,
        }
    }
}

fn refused(found: FoundDeadlock) -> Failure {
    let mut failure = Failure::new(ErrorName::Refused, found.message);
    failure.reason = Some("deadlock".into());
    failure.cycle = found.cycle.into();
    failure
}
