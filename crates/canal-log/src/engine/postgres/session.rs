//! One connection to the server, checked and set up, until it breaks.
//!
//! Invariant: an open session writes to a primary, through no pooler, in tables of this program's
//! format, knows the server's era, and is notified of every append while it listens.

use std::future::poll_fn;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Connection, Error};

use super::era::{Known, Observation};
use super::error::{DIRECT, PostgresError, Result};
use super::notification::{Notification, Seal};
use super::rows::TextRow;
use super::settings::url::Settings;
use crate::engine::engine_thread::{self, RenewBy};
use crate::engine::era::Era;
use canal_sys::clock::boottime_ms;

/// The time limit for any request to the server. The server itself gives up slightly earlier,
/// except in a case that its own time-out does not cover: a commit that waits for a synchronous
/// standby. canal never cancels that wait, because the server would then show everyone data that
/// the standby does not have.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The oldest supported server, as `server_version_num`.
const OLDEST: u32 = 130_000;

/// The warning about a server that does not write to its disk what it acknowledges.
pub(super) const NO_FSYNC: &str =
    "the server is running with fsync = off: if it crashes, locks can be lost";

/// The settings of a session, which override the defaults of the server, the database and the user.
/// Settings that a server does not know are skipped.
const WANTED: [(&str, &str); 11] = [
    // Acknowledged commits must survive a crash.
    ("synchronous_commit", "on"),
    // Statements that wait for the row of the head must then see what others committed.
    ("default_transaction_isolation", "read committed"),
    ("search_path", "pg_catalog"),
    ("standard_conforming_strings", "on"),
    ("bytea_output", "hex"),
    // In milliseconds.
    ("statement_timeout", "15000"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "10000"),
    ("transaction_timeout", "0"),
    // A host may be silent for a long time.
    ("idle_session_timeout", "0"),
    // The plans are small: compiling them takes longer than running them.
    ("jit", "off"),
];

/// An open connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub client: Client,
    pub schema: String,
    /// Whether the server announces appends.
    pub listens: bool,
    /// How far the log was read, if it is being read.
    pub cursor: Option<Cursor>,
    /// A secret that only this session knows.
    pub proof: String,
    /// Seals the batches in notifications.
    pub seal: Seal,
    /// Whether the server reveals its system identifier.
    pub tells_system: bool,
    /// The signs of its era that the server showed.
    pub seen: Observation,
    pub known: Known,
    /// What the server announces, until the connection ends.
    pub announced: UnboundedReceiver<Notification>,
    driver: JoinHandle<Option<Error>>,
}

/// How far the log was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The last batch that was read.
    pub after: u64,
    /// The last batch that is known to exist.
    pub head: u64,
}

impl Cursor {
    pub(crate) fn at(after: u64) -> Self {
        Self { after, head: after }
    }

    /// Records that the log reaches up to `head`.
    pub(crate) fn learn_head(&mut self, head: u64) {
        self.head = self.head.max(head);
    }

    pub(crate) fn next_is(&self, position: u64) -> bool {
        self.after.checked_add(1) == Some(position)
    }

    pub(crate) fn read_to(&mut self, position: u64) {
        self.after = position;
        self.head = self.head.max(position);
    }
}

impl Session {
    /// Connects, checks the server and sets up the session.
    pub(crate) async fn open(settings: &Settings, renew_by: &RenewBy) -> Result<Self> {
        let opened = async {
            let mut session = Self::log_in(settings).await?;
            session.make_schema().await?;
            // Listen before reading, so that every later append is announced.
            session.listen(true).await?;
            Ok(session)
        };
        settings.in_time(renew_by.attempt(PATIENCE), opened).await
    }

    /// Connects, checks the server and its settings, but not the tables.
    pub(super) async fn log_in(settings: &Settings) -> Result<Self> {
        let proof = format!("{:032x}", engine_thread::random()?);
        let mut config = settings.config.clone();
        // A setting in the message that opens a session applies to this session only. A pooler
        // refuses it, or answers from another session.
        let options = config.get_options().map(|given| format!("{given} ")).unwrap_or_default();
        config.options(format!("{options}-c canal.session={proof}"));
        let connected = config.connect(settings.tls.clone()).await;
        let (client, connection) = connected
            .map_err(|error| PostgresError::at_login(error, settings.passfile.as_deref()))?;
        let (announce, announced) = mpsc::unbounded_channel();
        let driver = tokio::spawn(drive(connection, announce));
        let mut session = Self {
            client,
            schema: settings.schema.clone(),
            listens: false,
            cursor: None,
            proof,
            seal: Seal::default(),
            tells_system: false,
            seen: Observation::default(),
            known: Known::default(),
            announced,
            driver,
        };
        session.check().await?;
        session.set_up().await?;
        Ok(session)
    }

    /// Makes the server announce appends, or stops that.
    pub(crate) async fn listen(&mut self, listens: bool) -> Result<()> {
        if listens != self.listens {
            let verb = if listens { "LISTEN" } else { "UNLISTEN" };
            self.client.batch_execute(&format!("{verb} \"{}\"", self.schema)).await?;
            self.listens = listens;
        }
        Ok(())
    }

    /// Checks that this server can be used.
    async fn check(&mut self) -> Result<()> {
        let query = "SELECT current_setting('canal.session', true), \
            current_setting('server_version_num'), pg_is_in_recovery(), current_setting('fsync'), \
            has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')";
        let row = self.row(query).await?;
        fits(row.number(1).unwrap_or(0))?;
        self.is_ours(row.text(0))?;
        if row.text(2) == "t" {
            return Err(PostgresError::away("the server is a standby"));
        }
        if row.text(3) == "off" {
            tracing::warn!("{NO_FSYNC}");
        }
        self.tells_system = row.text(4) == "t";
        Ok(())
    }

    /// Checks that the session that answered is the one that was opened.
    pub(crate) fn is_ours(&self, proof: &str) -> Result<()> {
        if proof == self.proof {
            return Ok(());
        }
        let why =
            "a pooler is in front of the server: the session is not the one that canal opened";
        Err(PostgresError::refused(why, DIRECT))
    }

    async fn set_up(&self) -> Result<()> {
        let wanted = WANTED.map(|(name, value)| format!("('{name}', '{value}')")).join(", ");
        let set = format!(
            "SELECT set_config(w.name, w.value, false) FROM (VALUES {wanted}) AS w(name, value) \
             JOIN pg_catalog.pg_settings s ON s.name = w.name"
        );
        self.client.batch_execute(&set).await?;
        // Available since 14, and not on every system: lets the server notice that this client is
        // gone while it waits for a lock.
        let _ = self.client.batch_execute("SET client_connection_check_interval = 2000").await;
        Ok(())
    }

    /// The last row of the answer to these statements, as text.
    pub(super) async fn row(&self, statements: &str) -> Result<TextRow> {
        let messages = self.client.simple_query(statements).await?;
        let unreadable = || PostgresError::away("cannot parse the server's answer");
        TextRow::last(messages).ok_or_else(unreadable)
    }

    /// The new era, if the log does not name it. If it does, this host has seen it, too.
    pub(super) fn begun(&mut self) -> Option<Era> {
        let begun = self.seen.begun(&self.known, boottime_ms());
        if begun.is_none() {
            self.known.sees(&self.seen);
        }
        begun
    }

    /// Why the session ended. If this error only states that the connection is gone, the connection
    /// knows the reason.
    pub(crate) async fn ended_by(self, error: PostgresError) -> PostgresError {
        if error.is_refusal() || !self.client.is_closed() {
            return error;
        }
        drop(self.client);
        match timeout(Duration::from_secs(1), self.driver).await {
            Ok(Ok(Some(error))) => error.into(),
            _ => PostgresError::closed(),
        }
    }
}

/// Checks that a server of this version can be used.
fn fits(version: u32) -> Result<()> {
    if version >= OLDEST {
        return Ok(());
    }
    let why = format!("the server is PostgreSQL {}, but canal needs 13 or later", version / 10_000);
    Err(PostgresError::refused(why, "upgrade the server, or use another one"))
}

/// Runs the connection until it ends.
async fn drive<S: AsyncRead + AsyncWrite + Unpin, T: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<S, T>,
    announce: UnboundedSender<Notification>,
) -> Option<Error> {
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(said))) => {
                // Other users of the channel do no harm: this host then reads, and finds nothing
                // new.
                let _ = announce.send(Notification::read(said.payload()));
            }
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::debug!("the server reports: {}", notice.message());
            }
            Some(Ok(_)) => {}
            Some(Err(why)) => return Some(why),
            None => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_before_13_are_refused() {
        assert!(fits(130_000).is_ok());
        assert!(fits(180_001).is_ok());
        for old in [120_022, 90_624, 0] {
            assert!(fits(old).unwrap_err().is_refusal(), "{old}");
        }
    }
}
