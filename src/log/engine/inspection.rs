//! What can be seen of an engine without changing anything there.

use super::identity::Identity;
use super::outage::Outage;

/// What was seen of an engine. Where no server could be used, only `servers` says something.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The servers that were asked, by the names that the address gives them.
    pub servers: Vec<(String, Result<ServerVersion, Outage>)>,
    /// How the connection is protected.
    pub transport: Transport,
    /// The user as whom canal logged in; `None` if the engine asks for none.
    pub user: Option<String>,
    /// What keeps a daemon from using the engine: rights that are missing, data of others.
    pub obstacles: Vec<Outage>,
    /// What an operator should know, and do about it.
    pub remarks: Vec<Remark>,
    /// The table that is kept there; `None` if the first daemon is still to make it.
    pub table: Option<TableSize>,
    /// The daemons that share the table.
    pub hosts: Vec<Identity>,
    /// The clock of the server, if it tells it.
    pub clock: Option<ServerClock>,
}

/// The program of a server, with its version: `PostgreSQL 17.2`.
pub type ServerVersion = String;

/// How a connection is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Nobody between here and the server can read or change it.
    Encrypted,
    /// It is not encrypted.
    #[default]
    Plain,
    /// It does not leave this machine.
    Local,
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// What there is to know.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// The size of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Batches of changes that no snapshot covers yet.
    pub batches: u64,
    /// The bytes on the server's disk; those of the whole server where it does not tell them apart.
    pub bytes: u64,
    /// Whether the bytes are those of the whole server.
    pub of_server: bool,
}

/// The clock of a server, compared with the clock of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerClock {
    /// By how much it is ahead, in milliseconds; less than 0 if it is behind.
    pub ahead_ms: i64,
    /// The error of `ahead_ms` is at most this, in milliseconds.
    pub error_ms: i64,
}

impl ServerClock {
    /// Of a server that said `theirs` between `before` and `after`, all in milliseconds since 1970.
    #[must_use]
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
