//! What commands record of themselves, to be checked from outside.
//!
//! A command appends `+ NAME` to the file `events` when it starts and `- NAME` before it ends, each
//! in one O_APPEND write of its shell. The order of the lines is the order in which it happened:
//! a command writes its first line after it was let in and its last one before it is let out.

use crate::world::World;

/// A shell command that records its start and end; `$1` is its name.
pub(crate) fn recorded(body: &str) -> String {
    format!("echo \"+ $1\" >>events; {body}; echo \"- $1\" >>events")
}

/// What was recorded in a world.
#[derive(Debug)]
pub(crate) struct Events(Vec<(bool, String)>);

impl Events {
    pub(crate) fn of(world: &World) -> Self {
        let text = world.read("events");
        let event = |line: &str| {
            let (sign, name) = line.split_once(' ').unwrap();
            (sign == "+", name.to_owned())
        };
        Self(text.lines().map(event).collect())
    }

    /// The names in the order of their starts.
    pub(crate) fn started(&self) -> Vec<&str> {
        self.0.iter().filter(|(start, _)| *start).map(|(_, name)| name.as_str()).collect()
    }

    /// How many recorded their end.
    pub(crate) fn ended(&self) -> usize {
        self.0.iter().filter(|(start, _)| !*start).count()
    }

    /// The most commands that ran at the same time.
    pub(crate) fn most_at_once(&self) -> usize {
        let (mut now, mut most) = (0_usize, 0);
        for (start, _) in &self.0 {
            now = if *start { now + 1 } else { now - 1 };
            most = most.max(now);
        }
        most
    }
}
