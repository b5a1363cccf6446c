//! Reads the log.
//!
//! Invariant: a reader gets the log from its starting point, in order and without gaps. If that is
//! not possible, it gets [`Answer::Compacted`] or [`Answer::Rewritten`], and nothing else.

use tokio_postgres::{IsolationLevel, Row};

use crate::engine::postgres::error::PostgresError;
use crate::engine::postgres::notification::Notification;
use crate::engine::postgres::session::connection::Cursor;
use crate::engine::postgres::session::connection::Session;
use crate::engine::postgres::session::number::{number, number_if_any};
use crate::engine::{Answer, Placed, Position, Read, Stored};
use canal_core::HostId;

/// The number of batches to read at once while following the log.
const PAGE: i64 = 256;

impl Session {
    /// Whether there is more to read.
    pub(crate) fn is_behind(&self) -> bool {
        self.cursor.is_some_and(|cursor| cursor.is_behind())
    }

    /// Reads the whole log as of one instant, and follows it from there.
    pub(crate) async fn load(&mut self) -> Result<Answer, PostgresError> {
        self.cursor = None;
        let schema = &self.schema;
        let at_once = self.client.build_transaction();
        let at_once = at_once.isolation_level(IsolationLevel::RepeatableRead).read_only(true);
        let at_once = at_once.start().await?;
        let head = format!(r#"SELECT snapshot FROM "{schema}".head"#);
        let position = number(&at_once.query_typed_one(&head, &[]).await?, 0)?;
        let parts = format!(
            r#"SELECT body FROM "{schema}".snapshot WHERE position = {position} ORDER BY part"#
        );
        let parts = at_once.query_typed(&parts, &[]).await?;
        let log = format!(
            r#"SELECT position, host, sequence, body FROM "{schema}".log
WHERE position > {position} ORDER BY position"#
        );
        let log = at_once.query_typed(&log, &[]).await?;
        at_once.commit().await?;
        let batches = log.iter().map(|row| placed(row, 0)).collect::<Result<Vec<_>, _>>()?;
        let snapshot = if position == 0 { None } else { Some(stored(position, &parts)?) };
        let after = batches.last().map_or(position, |last| last.position.0);
        self.cursor = Some(Cursor::at(after));
        Ok(Answer::Loaded { snapshot, batches })
    }

    /// Follows the log after a batch, if the log still contains that batch as it was read.
    pub(crate) async fn follow(&mut self, after: Option<Read>) -> Result<Answer, PostgresError> {
        self.cursor = None;
        if let Some(answer) = self.differs(after).await? {
            return Ok(answer);
        }
        self.cursor = Some(Cursor::at(after.map_or(0, |read| read.position.0)));
        let more = self.page().await?;
        Ok(more.unwrap_or(Answer::Batches(Vec::new())))
    }

    /// How the log differs from what was read; `None` if it continues from there.
    async fn differs(&self, after: Option<Read>) -> Result<Option<Answer>, PostgresError> {
        let position = after.map_or(0, |read| read.position.0);
        let query = format!(
            r#"SELECT head.snapshot, l.host, l.sequence, sha256(l.body)
FROM "{schema}".head AS head LEFT JOIN "{schema}".log AS l ON l.position = {position}"#,
            schema = self.schema
        );
        let row = self.client.query_typed_one(&query, &[]).await?;
        if position < number(&row, 0)? {
            return Ok(Some(Answer::Compacted));
        }
        let Some(read) = after else { return Ok(None) };
        let lies_there = number_if_any(&row, 1)? == Some(read.host.0)
            && number_if_any(&row, 2)? == Some(read.sequence)
            && row.try_get::<_, Option<&[u8]>>(3)? == Some(read.body.0.as_slice());
        Ok(if lies_there { None } else { Some(Answer::Rewritten) })
    }

    /// Records that a batch was appended. Returns the batch if it is the next one and the
    /// notification carries it. Otherwise the batch must be read from the table.
    pub(crate) fn notified(&mut self, notification: &Notification) -> Option<Answer> {
        let head = notification.head;
        let cursor = self.cursor.as_mut()?;
        if cursor.next_is(head)
            && let Some(placed) = self.seal.open(notification)
        {
            cursor.read_to(head);
            self.knows(head);
            return Some(Answer::Batches(vec![placed]));
        }
        cursor.learn_head(head);
        None
    }

    /// Reads the next batches, if there are any.
    pub(crate) async fn page(&mut self) -> Result<Option<Answer>, PostgresError> {
        let Some(cursor) = &mut self.cursor else { return Ok(None) };
        // One statement sees one instant; batches before the snapshot may be deleted at any moment.
        let query = format!(
            r#"SELECT head.snapshot, head.position, l.position, l.host, l.sequence, l.body
FROM "{schema}".head AS head LEFT JOIN LATERAL (
    SELECT * FROM "{schema}".log WHERE position > {after} ORDER BY position LIMIT {PAGE}
) AS l ON true ORDER BY l.position"#,
            schema = self.schema,
            after = cursor.after
        );
        let rows = self.client.query_typed(&query, &[]).await?;
        let Some(first) = rows.first() else {
            return Err(PostgresError::away("the tables were emptied"));
        };
        if cursor.after < number(first, 0)? {
            self.cursor = None;
            return Ok(Some(Answer::Compacted));
        }
        let head = number(first, 1)?;
        if head < cursor.after {
            self.cursor = None;
            return Ok(Some(Answer::Rewritten));
        }
        let mut batches = Vec::with_capacity(rows.len());
        for row in &rows {
            if number_if_any(row, 2)?.is_some() {
                batches.push(placed(row, 2)?);
            }
        }
        cursor.after = batches.last().map_or(cursor.after, |last| last.position.0);
        // An announced batch that is not there was not meant for this table.
        cursor.head = head.max(cursor.after);
        self.knows(head);
        Ok(if batches.is_empty() { None } else { Some(Answer::Batches(batches)) })
    }
}

/// The batch whose columns begin at `column`.
fn placed(row: &Row, column: usize) -> Result<Placed, PostgresError> {
    Ok(Placed {
        position: Position(number(row, column)?),
        host: HostId(number(row, column + 1)?),
        sequence: number(row, column + 2)?,
        body: row.try_get(column + 3)?,
    })
}

fn stored(position: u64, parts: &[Row]) -> Result<Stored, PostgresError> {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(part.try_get(0)?);
    }
    Ok(Stored { position: Position(position), body })
}
