//! Incarnations: registering and renewing them.

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::error::{PostgresError, Result};
use super::rows::{number, number_if_any};
use super::session::Session;
use crate::engine::{Alive, Answer, Claimant, Identity, Position, Registration, Sign};
use canal_core::HostId;

impl Session {
    /// Registers an incarnation for the nonce, unless it already has one.
    pub(crate) async fn register(&mut self, registration: &Registration) -> Result<Answer> {
        let Registration { identity, nonce, ttl_ms, asked_at } = registration;
        let schema = &self.schema;
        let told = serde_json::to_string(identity)
            .map_err(|why| PostgresError::away(format!("cannot encode the identity: {why}")))?;
        let nonce_bytes = format!("'\\x{nonce:032x}'::bytea");
        // If the same nonce arrives twice at once, the table refuses one, and the call is repeated.
        let take = format!(
            r#"WITH known AS MATERIALIZED (SELECT host, ttl_ms FROM "{schema}".hosts WHERE nonce = {nonce_bytes}),
head AS (UPDATE "{schema}".head SET incarnation = incarnation + 1
    WHERE NOT EXISTS (SELECT FROM known) RETURNING incarnation),
new AS (INSERT INTO "{schema}".hosts (host, nonce, label, identity, ttl_ms)
    SELECT incarnation, {nonce_bytes}, $1, $2, {ttl_ms} FROM head RETURNING host, ttl_ms)
SELECT host, ttl_ms, (SELECT epoch FROM "{schema}".head)
    FROM (SELECT * FROM known UNION ALL SELECT * FROM new) AS mine"#
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&identity.label, Type::TEXT), (&told, Type::TEXT)];
        let row = self.client.query_typed_one(&take, &parameters).await?;
        let (host, ttl_ms) = (number(&row, 0)?, number(&row, 1)?);
        let epoch: &[u8] = row.try_get(2)?;
        let epoch = <[u8; 16]>::try_from(epoch).map_or(0, u128::from_be_bytes);
        // Read once this host's row is in the table: if two hosts take one label at the same time,
        // at least one of them sees the other.
        let others = self.others(&identity.label, host).await?;
        self.known.nonces.insert(HostId(host), *nonce);
        self.known.ttl_ms = ttl_ms;
        let asked_at = *asked_at;
        Ok(Answer::Registered { host: HostId(host), ttl_ms, asked_at, epoch, others })
    }

    async fn others(&self, label: &str, host: u64) -> Result<Vec<Claimant>> {
        let query = format!(
            r#"SELECT host, identity, nonce FROM "{}".hosts
WHERE label = $1 AND host <> {host} AND ended IS NULL ORDER BY host"#,
            self.schema
        );
        let rows = self.client.query_typed(&query, &[(&label, Type::TEXT)]).await?;
        let claimant = |row: &Row| {
            let host = HostId(number(row, 0)?);
            let identity = identity(row, 1, &format!("incarnation {host}"))?;
            // A nonce that cannot be read matches no host.
            let nonce = <[u8; 16]>::try_from(row.try_get::<_, &[u8]>(2)?);
            Ok(Claimant { host, nonce: nonce.map_or(0, u128::from_be_bytes), identity })
        };
        rows.iter().map(claimant).collect()
    }

    /// The daemons that have not ended.
    pub(super) async fn hosts(&self) -> Result<Vec<Identity>> {
        let query = format!(
            "SELECT identity FROM \"{}\".hosts WHERE ended IS NULL ORDER BY host",
            self.schema
        );
        let rows = self.client.query_typed(&query, &[]).await?;
        rows.iter().map(|row| identity(row, 0, "the identity of a host")).collect()
    }

    /// Withdraws an incarnation that has appended nothing.
    pub(crate) async fn withdraw(&mut self, host: HostId) -> Result<Answer> {
        if let Some(nonce) = self.known.nonces.get(&host) {
            let query = format!(
                r#"DELETE FROM "{}".hosts
WHERE host = {host} AND nonce = '\x{nonce:032x}' AND sequence = 0 AND ended IS NULL"#,
                self.schema
            );
            self.client.query_typed(&query, &[]).await?;
        }
        Ok(Answer::Withdrawn { host })
    }

    /// Counts a renewal, unless the incarnation has ended.
    pub(crate) async fn renew(&mut self, host: HostId, asked_at: u64) -> Result<Answer> {
        let schema = &self.schema;
        let nonce = self.known.is_own(host);
        let query = format!(
            r#"WITH mine AS (UPDATE "{schema}".hosts SET renewals = renewals + 1
    WHERE host = {host} {nonce} AND ended IS NULL RETURNING ttl_ms)
SELECT (SELECT ttl_ms FROM mine), head.position, current_setting('canal.session', true),
    (SELECT ended FROM "{schema}".hosts WHERE host = {host}), h.host, h.ttl_ms, h.renewals,
    (SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint)
FROM "{schema}".head AS head LEFT JOIN "{schema}".hosts AS h ON h.ended IS NULL
ORDER BY h.host"#
        );
        let rows = self.client.query_typed(&query, &[]).await?;
        let Some(first) = rows.first() else {
            return Err(PostgresError::away("the tables were emptied"));
        };
        self.is_ours(first.try_get::<_, Option<&str>>(2)?.unwrap_or_default())?;
        let head = number(first, 1)?;
        // This makes up for a lost notification.
        if let Some(cursor) = &mut self.cursor {
            cursor.learn_head(head);
        }
        let Some(ttl_ms) = number_if_any(first, 0)? else {
            let why = not_alive(host, number_if_any(first, 3)?);
            return Ok(Answer::Fenced { host, why });
        };
        self.known.ttl_ms = ttl_ms;
        self.known.flushed(number(first, 7)?);
        self.known.reaches(head);
        // This host is among them.
        let alive = |row: &Row| {
            let (host, sign) = (HostId(number(row, 4)?), Sign::Renewals(number(row, 6)?));
            Ok(Alive { host, ttl_ms: number(row, 5)?, sign })
        };
        let hosts = rows.iter().map(alive).collect::<Result<_>>()?;
        Ok(Answer::Renewed { asked_at, ttl_ms, head: Position(head), hosts })
    }
}

/// Why an incarnation cannot go on: it was ended at a position, or the log does not have it.
pub(super) fn not_alive(HostId(host): HostId, ended: Option<u64>) -> String {
    match ended {
        Some(ended) => format!("incarnation {host} was ended at position {ended}"),
        None => format!("the log has no incarnation {host} of this daemon"),
    }
}

/// The identity in a column; an error names it as `what`.
fn identity(row: &Row, column: usize, what: &str) -> Result<Identity> {
    serde_json::from_str(row.try_get(column)?)
        .map_err(|why| PostgresError::away(format!("cannot read {what}: {why}")))
}
