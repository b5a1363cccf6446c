//! One connection to the server, checked and set up, until it breaks.
//!
//! Invariant: a session that was opened writes to a primary, through no pooler, in tables of this
//! program's format, knows the server's era, and is notified of every append from then on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Connection, Error, SimpleQueryMessage};

use super::cursor::Cursor;
use super::era::{Observation, Witness};
use crate::log::engine::postgres::error::{DIRECT, PostgresError, Refusal};
use crate::log::engine::postgres::event::WorkerEvent;
use crate::log::engine::postgres::notification::{Notification, Seal};
use crate::log::engine::postgres::settings::url::Settings;
use crate::log::engine::retry::RenewBy;

/// How long anything that is asked of the server may take. The server itself gives up a little
/// earlier, but for what its own time-out does not cover: the wait for a synchronous standby in a
/// commit. That wait is never cancelled by us: the server would then show to all what the standby
/// does not have.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The oldest server, as `server_version_num`.
const OLDEST: u32 = 130_000;

/// What a session is set to, whatever the server, the database or the user has as default. Names
/// that a server does not know are passed over.
const WANTED: &[(&str, &str)] = &[
    // What is acknowledged is kept.
    ("synchronous_commit", "on"),
    // Statements that wait for the row of the head must see what was done meanwhile.
    ("default_transaction_isolation", "read committed"),
    ("search_path", "pg_catalog"),
    ("standard_conforming_strings", "on"),
    ("bytea_output", "hex"),
    // In milliseconds.
    ("statement_timeout", "15000"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "10000"),
    ("transaction_timeout", "0"),
    // A host may have nothing to say for long.
    ("idle_session_timeout", "0"),
    // Plans are small; compiling them takes longer than they do.
    ("jit", "off"),
];

/// An open connection.
#[derive(Debug)]
pub(crate) struct Session {
    /// Which one of this engine's.
    pub(crate) id: u64,
    pub(crate) client: Client,
    pub(crate) schema: String,
    /// How far the log was read, if it is read.
    pub(crate) cursor: Option<Cursor>,
    /// The nonces of the incarnations that were registered here: after a fail-over that lost them,
    /// the server could give the same numbers to others.
    pub(crate) nonces: BTreeMap<u64, u128>,
    /// What only this session knows.
    pub(crate) proof: String,
    /// Seals the batches in notifications.
    pub(crate) seal: Seal,
    /// Whether the server tells us its system identifier.
    pub(crate) tells_system: bool,
    /// What it showed of its era.
    pub(crate) seen: Observation,
    /// What this host knows the server to have had, from this session and those before.
    pub(crate) witness: Option<Witness>,
    driver: JoinHandle<Option<Error>>,
}

impl Session {
    /// Connects, checks and sets up.
    pub(crate) async fn open(
        id: u64,
        settings: &Settings,
        renew_by: &RenewBy,
        wake: &mpsc::UnboundedSender<WorkerEvent>,
    ) -> Result<Self, PostgresError> {
        // An unreachable server may stand in the list before a reachable one.
        let addresses = settings.config.get_hosts().len().max(1);
        let patience = renew_by.attempt(PATIENCE) * u32::try_from(addresses).unwrap_or(u32::MAX);
        timeout(patience, Self::connect(id, settings, wake))
            .await
            .unwrap_or_else(|_| Err(PostgresError::silent()))
    }

    /// Connects, checks, and has the server refuse everything that would change something.
    pub(crate) async fn open_to_read(settings: &Settings) -> Result<Self, PostgresError> {
        // Nobody listens to what the server announces.
        let (wake, _) = mpsc::unbounded_channel();
        let mut session = Self::log_in(0, settings, &wake).await?;
        session.check().await?;
        session.set_up().await?;
        session.client.batch_execute("SET default_transaction_read_only = on").await?;
        Ok(session)
    }

    async fn log_in(
        id: u64,
        settings: &Settings,
        wake: &mpsc::UnboundedSender<WorkerEvent>,
    ) -> Result<Self, PostgresError> {
        let proof = random_hex()?;
        let mut config = settings.config.clone();
        // A setting in the message that opens a session applies to this session only. A pooler
        // refuses it, or answers with another session.
        let options = config.get_options().map(|given| format!("{given} ")).unwrap_or_default();
        config.options(format!("{options}-c canal.session={proof}"));
        let connected = config.connect(settings.tls.connect.clone()).await;
        let (client, connection) = connected
            .map_err(|error| PostgresError::at_login(error, settings.passfile.as_ref()))?;
        let driver = tokio::spawn(drive(connection, id, wake.clone()));
        let schema = settings.schema.clone();
        Ok(Self {
            id,
            client,
            schema,
            cursor: None,
            nonces: BTreeMap::new(),
            proof,
            seal: Seal::default(),
            tells_system: false,
            seen: Observation::default(),
            witness: None,
            driver,
        })
    }

    async fn connect(
        id: u64,
        settings: &Settings,
        wake: &mpsc::UnboundedSender<WorkerEvent>,
    ) -> Result<Self, PostgresError> {
        let mut session = Self::log_in(id, settings, wake).await?;
        session.check().await?;
        session.set_up().await?;
        session.make_schema().await?;
        // Before anything is read, so that every append after the reading is announced.
        session.client.batch_execute(&format!("LISTEN \"{}\"", session.schema)).await?;
        Ok(session)
    }

    /// Whether this is a server that can be used.
    async fn check(&mut self) -> Result<(), PostgresError> {
        let row = self
            .first_row(
                "SELECT current_setting('canal.session', true), \
                 current_setting('server_version_num'), pg_is_in_recovery(), \
                 current_setting('fsync'), \
                 has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')",
            )
            .await?;
        let text = |column| row.get(column).and_then(Option::as_deref).unwrap_or_default();
        fits(text(1))?;
        self.is_ours(text(0))?;
        if text(2) == "t" {
            return Err(PostgresError::Away("the server is a standby".to_owned()));
        }
        if text(3) == "off" {
            tracing::warn!("the server runs with fsync = off: a crash of it can lose locks");
        }
        self.tells_system = text(4) == "t";
        Ok(())
    }

    /// Whether the session that answered is the one that was opened.
    pub(crate) fn is_ours(&self, proof: &str) -> Result<(), PostgresError> {
        if proof == self.proof {
            return Ok(());
        }
        let why = "a pooler lies between here and the server: the session is not the one that was \
                   opened";
        Err(PostgresError::Refused(Refusal::new(why, DIRECT)))
    }

    async fn set_up(&self) -> Result<(), PostgresError> {
        let mut wanted = String::new();
        for (name, value) in WANTED {
            let comma = if wanted.is_empty() { "" } else { ", " };
            let _ = write!(wanted, "{comma}('{name}', '{value}')");
        }
        let set = format!(
            "SELECT set_config(w.name, w.value, false) FROM (VALUES {wanted}) AS w(name, value) \
             JOIN pg_catalog.pg_settings s ON s.name = w.name"
        );
        self.client.batch_execute(&set).await?;
        // Since 14, and not on every system: notices that we are gone while it waits for a lock.
        let _ = self.client.batch_execute("SET client_connection_check_interval = 2000").await;
        Ok(())
    }

    /// The columns of the first row, as text.
    pub(super) async fn first_row(
        &self,
        query: &str,
    ) -> Result<Vec<Option<String>>, PostgresError> {
        Ok(first_row(&self.client.simple_query(query).await?))
    }

    /// Why the connection ended.
    pub(crate) async fn ended(self) -> PostgresError {
        drop(self.client);
        match timeout(Duration::from_secs(1), self.driver).await {
            Ok(Ok(Some(error))) => error.into(),
            _ => PostgresError::Away("the server closed the connection".to_owned()),
        }
    }
}

/// The columns of the last row that was answered, as text.
pub(crate) fn first_row(messages: &[SimpleQueryMessage]) -> Vec<Option<String>> {
    let row = messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let Some(row) = row else { return Vec::new() };
    (0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect()
}

/// Whether a server of that version can be used.
fn fits(version: &str) -> Result<(), PostgresError> {
    let number = version.parse().unwrap_or(0);
    if number >= OLDEST {
        return Ok(());
    }
    let why = format!("the server is PostgreSQL {}, canal needs 13 or later", number / 10_000);
    Err(PostgresError::Refused(Refusal::new(why, "upgrade the server, or use another one")))
}

fn random_hex() -> Result<String, PostgresError> {
    let mut bytes = [0; 16];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|why| PostgresError::Away(format!("no random numbers: {why}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Runs the connection until it ends.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    id: u64,
    wake: mpsc::UnboundedSender<WorkerEvent>,
) -> Option<Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let why = loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(said))) => {
                // Other users of the channel do no harm: this side reads, and finds nothing new.
                let notification = Notification::read(said.payload());
                let _ = wake.send(WorkerEvent::Notified(notification));
            }
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::debug!("the server says: {}", notice.message());
            }
            Some(Ok(_)) => {}
            Some(Err(why)) => break Some(why),
            None => break None,
        }
    };
    let _ = wake.send(WorkerEvent::Ended(id));
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_before_13_are_refused() {
        assert!(fits("130000").is_ok());
        assert!(fits("180001").is_ok());
        for old in ["120022", "90624", ""] {
            assert!(matches!(fits(old), Err(PostgresError::Refused(_))), "{old}");
        }
    }
}
