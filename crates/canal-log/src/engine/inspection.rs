//! The visible state of an engine, found without a change to it.

use super::calls::{Identity, Outage};

/// The visible state of an engine. If no server was usable, only `servers` has content.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The servers by their names in the address: the program and version of one that answered
    /// (`PostgreSQL 17.2`), or how it failed.
    pub servers: Vec<(String, Result<String, Outage>)>,
    /// How the connection is protected.
    pub transport: Transport,
    /// The user as whom canal logged in; `None` if the engine requires none.
    pub user: Option<String>,
    /// The reasons why a daemon cannot use the engine: missing rights, foreign data.
    pub obstacles: Vec<Outage>,
    /// Facts that an operator should know, each with the action to take.
    pub remarks: Vec<(String, &'static str)>,
    /// The table in it; `None` before the first daemon creates it.
    pub table: Option<TableSize>,
    /// The daemons that share the table.
    pub hosts: Vec<Identity>,
    /// The clock of the server, if it reports it.
    pub clock: Option<ServerClock>,
}

/// How a connection is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Only this program and the server can read or change it.
    Encrypted,
    /// It is not encrypted.
    #[default]
    Plain,
    /// It does not leave this machine.
    Local,
}

/// The size of the stored table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Batches of changes that no snapshot covers yet.
    pub batches: u64,
    /// The bytes on the server's disk; those of the whole server if it does not report them
    /// separately.
    pub bytes: u64,
    /// Whether the bytes are those of the whole server.
    pub of_server: bool,
}

/// The clock of a server, compared with the clock of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerClock {
    /// How far it is ahead, in milliseconds; negative if it is behind.
    pub ahead_ms: i64,
    /// The error of `ahead_ms` is at most this, in milliseconds.
    pub error_ms: i64,
}

impl ServerClock {
    /// The comparison for a server that reported `theirs` between `before` and `after`, all in
    /// milliseconds since 1970.
    pub fn read(before: u64, theirs: i64, after: u64) -> Self {
        let [before, after] = [before, after].map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        let error_ms = (after.saturating_sub(before) / 2).max(0).saturating_add(1);
        let here = before.saturating_add(after.saturating_sub(before) / 2);
        Self { ahead_ms: theirs.saturating_sub(here), error_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_compared_with_the_middle_of_the_question() {
        let clock = |before, theirs, after| {
            let ServerClock { ahead_ms, error_ms } = ServerClock::read(before, theirs, after);
            (ahead_ms, error_ms)
        };
        assert_eq!(clock(1000, 1010, 1020), (0, 11));
        assert_eq!(clock(1000, 61_010, 1020), (60_000, 11));
        assert_eq!(clock(1000, 0, 1000), (-1000, 1));
        assert_eq!(clock(2000, 1990, 1980), (0, 1), "our own clock was set back meanwhile");
    }
}
