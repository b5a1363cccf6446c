//! A terminal as a person sees it.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::terminal::Terminal;
use crate::world::World;
use crate::world::executable::executable;
use crate::world::process::{BOUND, Proc};

/// The key that interrupts a job.
pub(crate) const CTRL_C: &str = "\x03";
/// The key that stops a job.
pub(crate) const CTRL_Z: &str = "\x1a";

/// A terminal with a shell on it.
pub(crate) struct Screen {
    terminal: Terminal,
    lines: u16,
    columns: u16,
}

impl Screen {
    /// Starts an interactive shell on a terminal of this size.
    pub(crate) fn with_shell(world: &World, lines: u16, columns: u16) -> Self {
        let shell = ["bash", "--norc", "--noprofile", "-i"];
        let mut screen = Self::start(world, &shell, lines, columns);
        screen.until("the prompt", |shown| shown == "$");
        screen
    }

    pub(crate) fn start(world: &World, command: &[&str], lines: u16, columns: u16) -> Self {
        let terminal = Terminal::of_size(world, command, (lines, columns));
        Self { terminal, lines, columns }
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.terminal.keys(keys);
    }

    /// Everything ever written to the terminal.
    pub(crate) fn written(&mut self) -> &[u8] {
        self.terminal.seen();
        &self.terminal.written
    }

    /// The content of the screen, without trailing blanks and trailing empty lines.
    pub(crate) fn shown(&mut self) -> String {
        self.terminal.seen();
        let mut parser = vt100::Parser::new(self.lines, self.columns, 0);
        parser.process(&self.terminal.written);
        let rows = parser.screen().rows(0, self.columns);
        let rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        rows.join("\n").trim_end().to_owned()
    }

    /// Waits until `is_so` accepts the screen.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let shown = self.shown();
            if is_so(&shown) {
                return shown;
            }
            let written = String::from_utf8_lossy(&self.terminal.written);
            assert!(begun.elapsed() < BOUND, "waited until {what}, but:\n{shown}\n{written:?}");
            thread::sleep(Duration::from_millis(4));
        }
    }

    /// Waits until the shell has ended its job and prompts again.
    #[track_caller]
    pub(crate) fn until_prompt(&mut self) -> String {
        self.until("the shell prompts", |shown| shown.ends_with("\n$"))
    }
}

/// Starts `canal run -k KEY -- ./deploy.sh`, which holds the key until it is finished.
#[track_caller]
pub(crate) fn deploy(world: &World, key: &str) -> Proc {
    executable(world.path("work/deploy.sh"), "#!/bin/sh\nexec cat\n");
    let holder = world.canal(["run", "-k", key, "--", "./deploy.sh"]).stdin(Stdio::piped()).spawn();
    world.until_held(key, 1);
    holder
}
