//! A request that has ended, before it becomes a record.

use std::sync::Arc;

use crate::history::exits::Exit;
use crate::history::slots::OwnSlots;
use crate::wording::pid_of;
use canal_core::{Request, View};
use canal_history::{Ending, Fields, Item};

/// A request that has ended. It shares the request with the log, so creating it is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub asked: Arc<Request>,
    /// The outermost frame; 0 if it had no frame.
    pub session: u64,
    pub ended_ms: u64,
    pub waited_ms: u64,
    pub held_ms: Option<u64>,
    pub token: u64,
    /// The slots that it held.
    pub slots: OwnSlots,
    pub host: Option<Arc<str>>,
    pub ending: Ending,
    /// Whether no daemon saw the end, so that the times are lower bounds.
    pub at_least: bool,
    /// The process whose end ended the request. The kernel may have its exit status.
    pub exit: Option<Arc<Exit>>,
}

impl Raw {
    /// The fields of its record.
    pub(crate) fn fields(&self) -> Fields<'_> {
        let asked = &self.asked;
        let items = asked.items.iter().enumerate().map(|(number, item)| {
            let counted = item.ask.counted();
            Item {
                key: item.key.as_str().into(),
                mode: item.ask.mode(),
                count: counted.map_or(0, |(count, _)| count),
                slots: self.slots.get(number).into(),
                size: counted.map_or(0, |(_, view)| {
                    let stated = view.unwrap_or(View::ONE).capacity();
                    self.slots.size(number).unwrap_or(stated)
                }),
            }
        });
        Fields {
            ended_ms: self.ended_ms,
            waited_ms: self.waited_ms,
            held_ms: self.held_ms,
            token: self.token,
            items: items.collect(),
            session: self.session,
            uid: asked.uid,
            pid: pid_of(&asked.owner),
            command: asked.command.0.as_str().into(),
            note: asked.note.as_deref().map(Into::into),
            host: self.host.as_deref().map(Into::into),
            at_least: self.at_least,
            ending: self.ending.clone(),
        }
    }
}
