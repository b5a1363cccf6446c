//! `canal top`: shows keys, holders and waiters on the whole terminal, as they change.
//!
//! `model` holds what is shown and reacts to keys, and `draw` draws it; neither does I/O. `feed`
//! brings the daemon's reports and answers, and `terminal` has the keyboard, the screen and the
//! signals.

mod draw;
mod feed;
mod model;
mod terminal;
mod timeline;

use std::ops::ControlFlow;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::cli::find_job::look_up;
use crate::cli::{Failed, Now, Result, Target, TopArgs, Verbosity, stderr};
use crate::run::SUCCESS;
use crate::sys::signals::die_by;
use feed::{Feed, News};
use model::{Model, OpenKey};
use terminal::{ESCAPE_PAUSE, Events, Key, Keyboard, Terminal};

pub(crate) fn run(args: &TopArgs, target: Target) -> Result<u8> {
    terminal::check()?;
    // Later messages of a connection would appear in the middle of the screen.
    let verbosity = stderr::verbosity();
    verbosity.min(Verbosity::Verbose).apply();
    let (client, key, session) = look_up(args.key.as_ref(), &target)?;
    let open = key.map(|key| OpenKey { key: key.to_string(), ..OpenKey::default() });
    let is_part = session.is_some() || args.only.is_set();
    let signals = terminal::catch_signals()?;
    let feed = Feed::start(client, target, args.only.query(key, session))?;
    let model = Model { open, is_part, ..Model::default() };
    let (keyboard, escape_at, terminal) = (Keyboard::default(), None, Terminal::enter(signals)?);
    // Only the screen may write to the terminal.
    Verbosity::Silent.apply();
    let ended = Top { model, keyboard, escape_at, feed, terminal }.run();
    verbosity.apply();
    match ended? {
        None => Ok(SUCCESS),
        Some(signal) => Ok(die_by(signal as i32)),
    }
}

/// The whole state of `canal top`.
struct Top {
    model: Model,
    keyboard: Keyboard,
    /// When an Escape counts as the key of that name, if nothing follows it.
    escape_at: Option<Instant>,
    feed: Feed,
    terminal: Terminal,
}

impl Top {
    /// Runs until the end, and restores the terminal. Returns the signal that ends canal, if one
    /// does.
    fn run(mut self) -> Result<Option<Signal>> {
        loop {
            let now = Now::here();
            let (buffer, cursor) = draw::draw(&mut self.model, Terminal::area(), &now);
            self.terminal.show(buffer, cursor)?;
            let pause = self.escape_at.map(|at| at.saturating_duration_since(Instant::now()));
            let time = now.good_for().into_iter().chain(pause).min();
            let events = self.terminal.wait(&self.feed.wake, time)?;
            if let ControlFlow::Break(signal) = self.turn(&events)? {
                return Ok(signal);
            }
        }
    }

    fn turn(&mut self, events: &Events) -> Result<ControlFlow<Option<Signal>>> {
        match events.signal {
            signal @ Some(it) if terminal::ENDING.contains(&it) => {
                return Ok(ControlFlow::Break(signal));
            }
            Some(Signal::SIGTSTP) => self.terminal.suspend()?,
            Some(Signal::SIGCONT) => self.terminal.resume()?,
            // `show` reads the size of the terminal each time.
            _ => {}
        }
        if events.hung_up {
            return Ok(ControlFlow::Break(None));
        }
        for news in self.feed.take() {
            match news {
                News::Status(status) => {
                    let again = self.model.report(*status);
                    again.into_iter().for_each(|ask| self.feed.ask(ask));
                }
                News::Lost => self.model.is_lost = true,
                News::Answer(ask, answer) => self.model.answer(&ask, *answer),
                News::Over(how) => {
                    how?;
                    let why = "the daemon has ended, so there are no further reports";
                    return Err(Failed::new(why));
                }
            }
        }
        for key in self.keys(&events.typed) {
            if key == Key::Redraw {
                self.terminal.forget();
                continue;
            }
            match self.model.press(key) {
                ControlFlow::Continue(ask) => ask.into_iter().for_each(|ask| self.feed.ask(ask)),
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(None)),
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The keys that are complete.
    fn keys(&mut self, typed: &[u8]) -> Vec<Key> {
        let mut keys = self.keyboard.read(typed);
        if !typed.is_empty() {
            self.escape_at = self.keyboard.has_begun().then(|| Instant::now() + ESCAPE_PAUSE);
        } else if self.escape_at.is_some_and(|at| at <= Instant::now()) {
            self.escape_at = None;
            keys.extend(self.keyboard.pause());
        }
        keys
    }
}
