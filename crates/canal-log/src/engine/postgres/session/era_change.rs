//! Notes a new era in the log.
//!
//! Invariant: an era is noted only if the previous one is still the last that the log names.

use super::connection::{Session, first_row};
use super::era::{LastSeen, noted};
use crate::engine::EraChange;
use crate::engine::position::to_hex;
use crate::engine::postgres::error::PostgresError;
use canal_sys::clock::boottime_ms;

impl Session {
    /// The new era, if the log does not name it. If it does, this host has seen it, too.
    pub(crate) fn begun(&mut self) -> Option<EraChange> {
        let begun = self.seen.begun(self.known.last_seen.as_ref(), boottime_ms());
        if begun.is_none() {
            self.known.last_seen = Some(LastSeen::of(&self.seen, self.known.last_seen.as_ref()));
        }
        begun
    }

    /// Records that the log reaches up to this position.
    pub(crate) fn knows(&mut self, position: u64) {
        if let Some(last_seen) = &mut self.known.last_seen {
            last_seen.reaches(position);
        }
    }

    /// Notes an era, with a batch in the log, if the previous era is still the last on the server.
    /// Returns whether this call did so. Afterwards, the session knows the server's present era.
    pub(crate) async fn note(
        &mut self,
        begun: &EraChange,
        body: &[u8],
    ) -> Result<bool, PostgresError> {
        let asked = self.noting(begun, body);
        let row = first_row(&self.client.simple_query(&asked).await?);
        let [position, number, sign, _] = row.as_slice() else {
            return Err(PostgresError::away("cannot parse the server's answer"));
        };
        let parsed = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
        let done = parsed(position);
        match done {
            Some(position) => {
                self.seen.noted = Some(begun.era.clone());
                self.seen.progress.position = position;
                self.known.last_seen =
                    Some(LastSeen::of(&self.seen, self.known.last_seen.as_ref()));
            }
            None => {
                let sign = sign.as_deref().unwrap_or_default();
                self.seen.noted = noted(parsed(number).unwrap_or(0), sign);
                if self.seen.noted == begun.before {
                    return Err(PostgresError::replaced());
                }
            }
        }
        Ok(done.is_some())
    }

    /// The statements that note an era, in one message and so in one transaction. They take the
    /// lock of the head as an append does.
    fn noting(&self, begun: &EraChange, body: &[u8]) -> String {
        let (schema, table) = (&self.schema, self.seen.table);
        let (number, sign) = (begun.era.number, quoted(&begun.era.sign));
        let (before, before_sign) = match &begun.before {
            Some(before) => (before.number, quoted(&before.sign)),
            None => (0, String::new()),
        };
        let body = to_hex(body);
        format!(
            r#"SELECT FROM "{schema}".head FOR UPDATE;
WITH head AS (UPDATE "{schema}".head
    SET position = position + 1, era = {number}, era_sign = '{sign}'
    WHERE era = {before} AND era_sign = '{before_sign}' AND tableoid = {table}
    RETURNING position),
log AS (INSERT INTO "{schema}".log (position, host, sequence, body)
    SELECT head.position, 0, {number}, '\x{body}'::bytea FROM head),
told AS MATERIALIZED (SELECT pg_notify('{schema}', position::text) FROM head)
SELECT (SELECT position FROM head), era, era_sign, (SELECT count(*) FROM told) IS NULL
FROM "{schema}".head"#
        )
    }
}

fn quoted(text: &str) -> String {
    text.replace('\'', "''")
}
