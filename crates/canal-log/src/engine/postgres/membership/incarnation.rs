//! Incarnations: registering and renewing them.

use tokio_postgres::types::{ToSql, Type};

use crate::engine::postgres::error::PostgresError;
use crate::engine::postgres::session::connection::Session;
use crate::engine::postgres::session::number::{signed, unsigned};
use crate::engine::{Alive, Answer, Claimant, Identity, Position, Sign};
use canal_core::HostId;

impl Session {
    /// Registers an incarnation for `nonce`, unless it already has one.
    pub(crate) async fn register(
        &mut self,
        identity: &Identity,
        nonce: u128,
        ttl_ms: u64,
        asked_at: u64,
    ) -> Result<Answer, PostgresError> {
        let schema = &self.schema;
        let told = serde_json::to_string(identity)
            .map_err(|why| PostgresError::away(format!("cannot encode the identity: {why}")))?;
        let asked_ttl = signed(ttl_ms);
        let bytes = nonce.to_be_bytes();
        let nonce_bytes = bytes.as_slice();
        // If the same nonce arrives twice at once, the table refuses one, and the call is repeated.
        let take = format!(
            r#"WITH known AS MATERIALIZED (SELECT host, ttl_ms FROM "{schema}".hosts WHERE nonce = $1),
head AS (UPDATE "{schema}".head SET incarnation = incarnation + 1
    WHERE NOT EXISTS (SELECT FROM known) RETURNING incarnation),
new AS (INSERT INTO "{schema}".hosts (host, nonce, label, identity, ttl_ms)
    SELECT incarnation, $1, $2, $3, $4 FROM head RETURNING host, ttl_ms)
SELECT host, ttl_ms, (SELECT epoch FROM "{schema}".head)
    FROM (SELECT * FROM known UNION ALL SELECT * FROM new) AS mine"#
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&nonce_bytes, Type::BYTEA),
            (&identity.label, Type::TEXT),
            (&told, Type::TEXT),
            (&asked_ttl, Type::INT8),
        ];
        let row = self.client.query_typed_one(&take, &parameters).await?;
        let (host, ttl_ms, epoch): (i64, i64, &[u8]) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let epoch = <[u8; 16]>::try_from(epoch).map_or(0, u128::from_be_bytes);
        // Read once this host's row is in the table: if two hosts take one label at the same time,
        // at least one of them sees the other.
        let others = self.others(&identity.label, host).await?;
        let host = unsigned(host);
        self.known.nonces.insert(host, nonce);
        let ttl_ms = unsigned(ttl_ms);
        if let Some(witness) = &mut self.known.witness {
            witness.lives(ttl_ms);
        }
        Ok(Answer::Registered { host: HostId(host), ttl_ms, asked_at, epoch, others })
    }

    async fn others(&self, label: &str, host: i64) -> Result<Vec<Claimant>, PostgresError> {
        let query = format!(
            r#"SELECT host, identity, nonce FROM "{}".hosts
WHERE label = $1 AND host <> $2 AND ended IS NULL ORDER BY host"#,
            self.schema
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&label, Type::TEXT), (&host, Type::INT8)];
        let rows = self.client.query_typed(&query, &parameters).await?;
        let mut others = Vec::with_capacity(rows.len());
        for row in rows {
            let (host, told, nonce): (i64, &str, &[u8]) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            // A nonce that cannot be read matches no host.
            let nonce = <[u8; 16]>::try_from(nonce).map_or(0, u128::from_be_bytes);
            let identity = serde_json::from_slice(told.as_bytes()).map_err(|why| {
                PostgresError::away(format!("cannot read incarnation {host}: {why}"))
            })?;
            others.push(Claimant { host: HostId(unsigned(host)), nonce, identity });
        }
        Ok(others)
    }

    /// Withdraws an incarnation that has appended nothing.
    pub(crate) async fn withdraw(&mut self, host: HostId) -> Result<Answer, PostgresError> {
        if let Some(nonce) = self.known.nonces.get(&host.0) {
            let query = format!(
                r#"DELETE FROM "{}".hosts
WHERE host = $1 AND nonce = '\x{nonce:032x}' AND sequence = 0 AND ended IS NULL"#,
                self.schema
            );
            let own = signed(host.0);
            self.client.query_typed(&query, &[(&own, Type::INT8)]).await?;
        }
        Ok(Answer::Withdrawn { host })
    }

    /// Counts a renewal, unless the incarnation has ended.
    pub(crate) async fn renew(
        &mut self,
        host: HostId,
        asked_at: u64,
    ) -> Result<Answer, PostgresError> {
        let schema = &self.schema;
        let nonce = match self.known.nonces.get(&host.0) {
            Some(nonce) => format!("AND nonce = '\\x{nonce:032x}'"),
            None => String::new(),
        };
        let query = format!(
            r#"WITH mine AS (UPDATE "{schema}".hosts SET renewals = renewals + 1
    WHERE host = $1 {nonce} AND ended IS NULL RETURNING ttl_ms)
SELECT (SELECT ttl_ms FROM mine), head.position, current_setting('canal.session', true),
    (SELECT ended FROM "{schema}".hosts WHERE host = $1), h.host, h.ttl_ms, h.renewals,
    (SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint)
FROM "{schema}".head AS head LEFT JOIN "{schema}".hosts AS h ON h.ended IS NULL
ORDER BY h.host"#
        );
        let own = signed(host.0);
        let rows = self.client.query_typed(&query, &[(&own, Type::INT8)]).await?;
        let Some(first) = rows.first() else {
            return Err(PostgresError::away("the tables were emptied"));
        };
        self.is_ours(first.try_get::<_, Option<&str>>(2)?.unwrap_or_default())?;
        let head = unsigned(first.try_get(1)?);
        // This makes up for a lost notification.
        if let Some(cursor) = &mut self.cursor {
            cursor.learn_head(head);
        }
        let Some(ttl_ms) = first.try_get::<_, Option<i64>>(0)? else {
            let why = match first.try_get::<_, Option<i64>>(3)? {
                Some(ended) => format!("incarnation {} was ended at position {ended}", host.0),
                None => format!("the log has no incarnation {} of this daemon", host.0),
            };
            return Ok(Answer::Fenced { host, why });
        };
        if let Some(witness) = &mut self.known.witness {
            witness.lives(unsigned(ttl_ms));
            witness.flushed(unsigned(first.try_get(7)?));
            witness.reaches(head);
        }
        let mut hosts = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(host) = row.try_get::<_, Option<i64>>(4)? else { continue };
            hosts.push(Alive {
                host: HostId(unsigned(host)),
                ttl_ms: unsigned(row.try_get(5)?),
                sign: Sign::Renewals(unsigned(row.try_get(6)?)),
            });
        }
        let (ttl_ms, head) = (unsigned(ttl_ms), Position(head));
        Ok(Answer::Renewed { asked_at, ttl_ms, head, hosts })
    }
}
