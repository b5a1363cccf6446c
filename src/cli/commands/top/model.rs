//! Holds what the screen shows: selects and sorts the keys of the list, and reacts to the keyboard.
//! No I/O, no clock.
//!
//! Invariant: the model requests an action only after the user confirms a question that names its
//! target. The display may change in the meantime, but the action may not.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use super::feed::{Answer, Ask, Who};
use super::terminal::Key;
use crate::cli::arguments::keys_and_sizes::view_of;
use crate::cli::user_name;
use crate::protocol::{KeyInfo, Resize, Status, WhyQuery};

/// The most characters of the text typed at the bottom.
const TYPED_MAX: usize = 200;

/// How many rows PageUp and PageDown move.
const PAGE_ROWS: isize = 8;

/// The whole model.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The last report; `None` before the first one.
    pub(super) status: Option<Status>,
    /// Whether the daemon went away, and canal waits for the next one.
    pub(super) is_lost: bool,
    /// Whether the daemon reports only a part of the locks.
    pub(super) is_part: bool,
    /// The order of the list, as an index into [`ORDERS`].
    pub(super) order: usize,
    /// Lists only keys with this text in their name, or in a user or command of a holder or waiter.
    pub(super) filter: String,
    /// The marked key in the list.
    pub(super) marked: Option<String>,
    /// The key whose page is open.
    pub(super) open: Option<OpenKey>,
    /// A page above the page of a key, or above the list.
    pub(super) above: Option<Above>,
    /// The content of the bottom, if it is not the keyboard help.
    pub(super) bottom: Bottom,
    /// The first visible line of content that is longer than the screen.
    pub(super) top: usize,
}

/// The page of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenKey {
    pub(super) key: String,
    /// The marked holder or waiter.
    pub(super) marked: Option<Who>,
    /// The last position of the mark, in case its holder or waiter is gone.
    pub(super) at: usize,
}

/// A page above the others, with its answer once that has arrived.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Above {
    Help,
    /// The question for a chain or a history, and its answer.
    Answer(Ask, Option<Box<Answer>>),
}

/// The content of the bottom.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Bottom {
    /// The keyboard help.
    #[default]
    Help,
    /// The result of an action, or the reason why there is none.
    Said(String),
    /// The user types the filter.
    Filter,
    /// The user types a size for this key.
    Size { key: String, typed: String },
    /// The action that follows if the user confirms it.
    Question(String, Ask),
    /// The daemon has not answered yet.
    Asking,
}

impl Model {
    /// The listed keys, in their order.
    pub(super) fn rows(&self) -> Vec<&KeyInfo> {
        let filter = self.filter.to_lowercase();
        let keys = self.status.iter().flat_map(|status| &status.keys);
        let mut rows: Vec<&KeyInfo> =
            keys.filter(|key| filter.is_empty() || has(key, &filter)).collect();
        let (_, sort) = ORDERS[self.order];
        sort(&mut rows);
        rows
    }

    /// The key whose page is open, from the last report.
    pub(super) fn opened(&self) -> Option<&KeyInfo> {
        self.key(&self.open.as_ref()?.key)
    }

    /// A key, from the last report.
    pub(super) fn key(&self, name: &str) -> Option<&KeyInfo> {
        self.status.as_ref()?.keys.iter().find(|key| key.key == name)
    }

    /// The position of the mark in the list, or among the holders and waiters of the open key.
    pub(super) fn mark(&self) -> Option<usize> {
        let Some(OpenKey { marked, .. }) = &self.open else {
            return self.rows().iter().position(|key| Some(&key.key) == self.marked.as_ref());
        };
        everyone(self.opened()?).iter().position(|who| Some(who) == marked.as_ref())
    }

    /// Handles a report.
    pub(super) fn report(&mut self, status: Status) -> Option<Ask> {
        (self.status, self.is_lost) = (Some(status), false);
        self.keep_marks();
        match &self.above {
            // The chain and the history may have changed too.
            Some(Above::Answer(ask, Some(_))) => Some(ask.clone()),
            _ => None,
        }
    }

    /// Handles an answer.
    pub(super) fn answer(&mut self, ask: &Ask, answer: Answer) {
        let shown = match &mut self.above {
            Some(Above::Answer(asked, shown)) if asked == ask => Some(shown),
            _ => None,
        };
        match (answer, shown) {
            (answer @ (Answer::Chain(_) | Answer::History(_)), Some(shown)) => {
                *shown = Some(Box::new(answer));
            }
            // The user has left the page to which the answer belongs.
            (Answer::Chain(_) | Answer::History(_), None) => {}
            (Answer::Question(text, then), _) if self.bottom == Bottom::Asking => {
                self.bottom = Bottom::Question(text, then);
            }
            // The user has done something else in the meantime.
            (Answer::Question(..), _) => {}
            (Answer::Done(text), _) => self.bottom = Bottom::Said(text),
            (Answer::Failed(_), None) if matches!(ask, Ask::Chain(_) | Ask::History { .. }) => {}
            (Answer::Failed(failed), shown) => {
                if shown.is_some() {
                    self.above = None;
                }
                let hint = failed.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                let said = failed.message + &hint;
                self.bottom = Bottom::Said(user_name::in_message(&said));
            }
        }
    }

    /// Handles a key press. Returns what to ask the daemon, or that canal quits.
    pub(super) fn press(&mut self, key: Key) -> ControlFlow<(), Option<Ask>> {
        ControlFlow::Continue(match std::mem::take(&mut self.bottom) {
            Bottom::Filter => self.type_filter(key),
            Bottom::Size { key: of, typed } => self.type_size(of, typed, key),
            Bottom::Question(_, then) if matches!(key, Key::Char('y' | 'Y')) => self.ask(then),
            Bottom::Question(..) => self.say("nothing was done"),
            _ if key == Key::Char('q') => return ControlFlow::Break(()),
            Bottom::Help | Bottom::Said(_) | Bottom::Asking => self.command(key),
        })
    }

    fn ask(&mut self, ask: Ask) -> Option<Ask> {
        self.bottom = Bottom::Asking;
        Some(ask)
    }

    fn say(&mut self, text: &str) -> Option<Ask> {
        self.bottom = Bottom::Said(text.to_owned());
        None
    }

    fn type_filter(&mut self, key: Key) -> Option<Ask> {
        match key {
            Key::Enter => {}
            Key::Escape => self.filter.clear(),
            _ => {
                edit(&mut self.filter, key);
                self.bottom = Bottom::Filter;
            }
        }
        self.keep_marks();
        None
    }

    fn type_size(&mut self, of: String, mut typed: String, key: Key) -> Option<Ask> {
        self.bottom = match key {
            Key::Escape => Bottom::Help,
            Key::Enter => match resize(&of, &typed) {
                Ok((question, resize)) => Bottom::Question(question, Ask::Resize(resize)),
                Err(why) => Bottom::Said(why),
            },
            _ => {
                edit(&mut typed, key);
                Bottom::Size { key: of, typed }
            }
        };
        None
    }

    fn command(&mut self, key: Key) -> Option<Ask> {
        let key = match key {
            Key::Char('j') => Key::Down,
            Key::Char('k') => Key::Up,
            key => key,
        };
        if let Some(rows) = rows(key) {
            let moved = |at: usize| at.saturating_add_signed(rows);
            match self.above {
                // Drawing reduces the end to the length of the page.
                Some(_) => self.top = moved(self.top),
                None => self.mark_at(moved(self.mark().unwrap_or(0)).min(self.last())),
            }
            return None;
        }
        match (key, self.above.is_some()) {
            (Key::Escape | Key::Backspace, _) => self.back(),
            (Key::Char('?'), false) => (self.above, self.top) = (Some(Above::Help), 0),
            // All other keys act on the page below.
            (_, true) => self.back(),
            (Key::Enter, _) if self.open.is_some() => return self.about_someone('w'),
            (Key::Enter, _) => {
                let key = self.marked.clone()?;
                (self.open, self.top) = (Some(OpenKey { key, ..OpenKey::default() }), 0);
                self.keep_marks();
            }
            (Key::Char('s'), _) if self.open.is_none() => {
                self.order = (self.order + 1) % ORDERS.len();
            }
            (Key::Char('/'), _) if self.open.is_none() => self.bottom = Bottom::Filter,
            (Key::Char(c @ ('h' | 'p' | 'z')), _) => return self.about_key(c),
            (Key::Char(c @ ('w' | 'r' | 'x')), _) => return self.about_someone(c),
            _ => {}
        }
        None
    }

    /// Shows the answer to a question above the present page.
    fn cover(&mut self, ask: Ask) -> Option<Ask> {
        (self.above, self.top) = (Some(Above::Answer(ask.clone(), None)), 0);
        Some(ask)
    }

    fn back(&mut self) {
        self.top = 0;
        if self.above.take().is_none() && self.open.take().is_none() {
            self.filter.clear();
        }
        self.keep_marks();
    }

    /// Handles a key press for the open or marked key.
    fn about_key(&mut self, what: char) -> Option<Ask> {
        let open = self.open.as_ref().map(|open| open.key.clone());
        let Some(key) = open.or_else(|| self.marked.clone()) else {
            return self.say("no key is selected");
        };
        if what == 'h' {
            return self.cover(Ask::History { key });
        }
        if what == 'z' {
            self.bottom = Bottom::Size { key, typed: String::new() };
            return None;
        }
        let is_paused = self.key(&key).is_some_and(|it| it.paused);
        let question = match is_paused {
            true => format!("resume {key}: grant its slots again?"),
            false => format!("pause {key}: grant none of its slots until it is resumed?"),
        };
        let resize = Resize { key, pause: Some(!is_paused), ..Resize::default() };
        self.bottom = Bottom::Question(question, Ask::Resize(resize));
        None
    }

    /// Handles a key press for the marked holder or waiter.
    fn about_someone(&mut self, what: char) -> Option<Ask> {
        let Some(open) = &self.open else {
            let first = "press Enter to open a key first; this acts on its holders and waiters";
            return self.say(first);
        };
        let Some(who) = open.marked.clone() else {
            return self.say("no one holds or waits for it");
        };
        match (what, who.token) {
            ('w', _) => self.cover(Ask::Chain(WhyQuery { session: Some(who.session), pid: None })),
            ('r', Some(token)) => self.ask(Ask::WouldRelease { token }),
            ('r', None) => {
                self.say("it is waiting and holds no part of this key; press x to end its process")
            }
            _ => self.ask(Ask::WouldKill { key: open.key.clone(), who }),
        }
    }

    /// The last position in the list, or among the holders and waiters of the open key.
    fn last(&self) -> usize {
        let count = match &self.open {
            Some(_) => self.opened().map_or(0, |key| key.holders.len() + key.waiters.len()),
            None => self.rows().len(),
        };
        count.saturating_sub(1)
    }

    fn mark_at(&mut self, at: usize) {
        let everyone = self.opened().map(everyone);
        match &mut self.open {
            Some(OpenKey { marked, at: last, .. }) => {
                (*marked, *last) = (everyone.and_then(|all| all.get(at).cloned()), at);
            }
            None => self.marked = self.rows().get(at).map(|key| key.key.clone()),
        }
    }

    /// Moves the mark to a neighbour if its target is gone.
    fn keep_marks(&mut self) {
        if let Some(open) = &self.open {
            let at = self.mark().unwrap_or(open.at);
            self.mark_at(at.min(self.last()));
        } else if self.mark().is_none() {
            let keys: Vec<&String> = self.rows().iter().map(|key| &key.key).collect();
            // The first of the keys that follow it by name.
            let follows =
                |key: &&&String| self.marked.as_ref().is_some_and(|marked| **key > marked);
            let next = keys.iter().filter(follows).min().or(keys.first());
            self.marked = next.map(|key| (*key).clone());
        }
    }
}

/// The holders and the waiters of a key, in display order.
fn everyone(key: &KeyInfo) -> Vec<Who> {
    let who = |token, session: &String, pid, since: &String| {
        let (session, since) = (session.clone(), since.clone());
        Who { token, session, pid, since }
    };
    let holders = key.holders.iter().map(|it| who(Some(it.token), &it.session, it.pid, &it.since));
    let waiters = key.waiters.iter().map(|it| who(None, &it.session, it.pid, &it.since));
    holders.chain(waiters).collect()
}

/// By how many rows a key moves.
fn rows(key: Key) -> Option<isize> {
    Some(match key {
        Key::Up => -1,
        Key::Down => 1,
        Key::PageUp => -PAGE_ROWS,
        Key::PageDown => PAGE_ROWS,
        Key::Home => isize::MIN,
        Key::End => isize::MAX,
        _ => return None,
    })
}

fn edit(text: &mut String, key: Key) {
    match key {
        Key::Char(c) if text.chars().count() < TYPED_MAX => text.push(c),
        Key::Backspace => drop(text.pop()),
        Key::Clear => text.clear(),
        _ => {}
    }
}

/// The change for a typed size, and the question before it.
fn resize(key: &str, typed: &str) -> Result<(String, Resize), String> {
    let typed = typed.trim();
    let resize = Resize { key: key.to_owned(), ..Resize::default() };
    if typed.is_empty() {
        let question = format!("forget the stored size of {key}?");
        return Ok((question, Resize { forget: true, ..resize }));
    }
    let (per, buckets, slots) = view_of(typed)?;
    let question = format!("store {typed} as the size of {key} for everyone?");
    Ok((question, Resize { per, buckets, slots, ..resize }))
}

type Sort = fn(&mut [&KeyInfo]);

/// The orders of the list: the name for display, and how to sort keys that are sorted by name.
pub(super) const ORDERS: [(&str, Sort); 4] = [
    ("most waiters first", |keys| keys.sort_by_key(|key| Reverse(key.waiting))),
    ("longest wait first", |keys| keys.sort_by_cached_key(|key| none_last(waits_since(key)))),
    ("longest hold first", |keys| keys.sort_by_cached_key(|key| none_last(held_since(key)))),
    ("by name", |_| {}),
];

/// A key to sort by that puts keys without this time last.
fn none_last(since: Option<&String>) -> (bool, Option<&String>) {
    (since.is_none(), since)
}

/// The start of the longest wait for a key. Times are RFC 3339 in UTC, so their text sorts like the
/// times.
pub(super) fn waits_since(key: &KeyInfo) -> Option<&String> {
    key.waiters.iter().map(|waiter| &waiter.since).min()
}

/// The start of the longest hold of a key.
pub(super) fn held_since(key: &KeyInfo) -> Option<&String> {
    key.holders.iter().map(|holder| &holder.since).min()
}

/// Whether the name of a key, or one of its holders or waiters, contains a text.
fn has(key: &KeyInfo, filter: &str) -> bool {
    let is_in = |text: &str| text.to_lowercase().contains(filter);
    let holders = key.holders.iter().map(|it| (it.uid, &it.command));
    let waiters = key.waiters.iter().map(|it| (it.uid, &it.command));
    is_in(&key.key)
        || holders.chain(waiters).any(|(uid, command)| {
            command.as_deref().is_some_and(is_in) || is_in(&user_name::name(uid))
        })
}

#[cfg(test)]
pub(super) mod tests;
