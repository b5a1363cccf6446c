//! Snapshots, and the deletion of the batches that they replace.

use tokio_postgres::types::{ToSql, Type};

use crate::engine::postgres::error::PostgresError;
use crate::engine::postgres::session::connection::{Session, first_row};
use crate::engine::postgres::session::number::number;
use crate::engine::{Answer, Position, Stored};

/// The size of the part of a snapshot that one row stores.
const PART_BYTES: usize = 1 << 20;

/// The largest snapshot. A table with a million holds needs a tenth of it.
const BYTES_MAX: usize = 1 << 30;

impl Session {
    /// Replaces the snapshot, unless the stored one is at least as new.
    pub(crate) async fn store(&mut self, stored: &Stored) -> Result<Answer, PostgresError> {
        let schema = &self.schema;
        let query = format!(r#"SELECT snapshot FROM "{schema}".head"#);
        let now = number(&self.client.query_typed_one(&query, &[]).await?, 0)?;
        // Stores only what this session has read from this server: a snapshot of history that the
        // server has lost could otherwise replace the present one.
        let read = self.cursor.map_or(0, |cursor| cursor.after);
        let fits = stored.body.len() <= BYTES_MAX;
        if !fits {
            tracing::warn!("a snapshot of {} bytes is too large to store", stored.body.len());
        }
        if stored.position.0 <= now || stored.position.0 > read || !fits {
            return Ok(Answer::Stored { position: Position(now) });
        }
        let done = self.replace(stored).await;
        if done.is_err() {
            // If the connection is gone, the rollback fails and is not needed.
            let _ = self.client.batch_execute("ROLLBACK").await;
        }
        done
    }

    async fn replace(&self, stored: &Stored) -> Result<Answer, PostgresError> {
        let schema = &self.schema;
        let position = stored.position.0;
        self.client.batch_execute("BEGIN").await?;
        let put = format!(
            r#"INSERT INTO "{schema}".snapshot (position, part, body) VALUES ({position}, $1, $2)"#
        );
        for (body, part) in stored.body.chunks(PART_BYTES).zip(0_i32..) {
            let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                [(&part, Type::INT4), (&body, Type::BYTEA)];
            self.client.execute_typed(&put, &parameters).await?;
        }
        // The last batch stays for readers that have read exactly up to it. Hosts that ended later
        // stay too, because they must learn how they ended.
        self.client
            .batch_execute(&format!(
                r#"DELETE FROM "{schema}".snapshot WHERE position < {position};
DELETE FROM "{schema}".log WHERE position < {position};
DELETE FROM "{schema}".hosts WHERE ended < {position}"#
            ))
            .await?;
        // Others wait for the head, so it comes last, in one message with the commit.
        let moved = format!(
            r#"SELECT FROM "{schema}".head FOR UPDATE;
UPDATE "{schema}".head SET snapshot = {position} WHERE snapshot < {position};
DELETE FROM "{schema}".snapshot WHERE position < (SELECT snapshot FROM "{schema}".head);
SELECT snapshot FROM "{schema}".head;
COMMIT"#
        );
        let row = first_row(&self.client.simple_query(&moved).await?);
        let now = row.first().and_then(Option::as_deref).and_then(|text| text.parse().ok());
        Ok(Answer::Stored { position: Position(now.unwrap_or(stored.position.0)) })
    }
}
