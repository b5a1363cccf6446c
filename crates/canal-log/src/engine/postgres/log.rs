//! The log in PostgreSQL: appends batches, reads them, and stores snapshots.
//!
//! An append is one message to the server, whose statements form one transaction. So the server
//! never waits for this host while others wait for the row of the head.
//!
//! Invariants: positions follow the order of commits, without gaps. The row of the head stays
//! locked from the moment when a position is taken until the commit. The server shows a transaction
//! to others before it releases its locks, so a reader that sees a position sees all earlier ones.
//!
//! A reader gets each batch once, in the order of positions, without gaps from its starting point.
//! If that is not possible, it gets [`Answer::Compacted`] or [`Answer::Rewritten`], and nothing
//! else.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{IsolationLevel, Row};

use super::era::noted;
use super::error::{PostgresError, Result};
use super::hosts::not_alive;
use super::notification::Notification;
use super::rows::{number, number_if_any};
use super::session::{Cursor, Session};
use crate::engine::era::Era;
use crate::engine::{Answer, Append, Evidence, Placed, Position, Read, Stored};
use canal_core::{HostId, UnixMillis};
use canal_sys::clock;

/// The number of batches to read at once while following the log.
const PAGE: i64 = 256;

/// The size of the part of a snapshot that one row stores.
const PART_BYTES: usize = 1 << 20;

/// The largest snapshot. A table with a million holds needs a tenth of it.
const BYTES_MAX: usize = 1 << 30;

impl Session {
    /// Appends a batch. Also reports the batch if it directly follows the last one that was read.
    pub(crate) async fn append(&mut self, append: &Append) -> Result<Vec<Answer>> {
        let row = self.row(&self.statements(append)).await?;
        let (host, sequence) = (append.host, append.sequence);
        match (row.text(0), row.number(1)) {
            ("again" | "append", Some(head)) => {
                let position = Position(head);
                self.known.reaches(head);
                let mut answers = vec![Answer::Appended { host, sequence, position }];
                if let Some(cursor) = &mut self.cursor {
                    if cursor.next_is(head) {
                        // The next batch in the log is known, so there is nothing to fetch.
                        cursor.read_to(head);
                        let placed = Placed { position, host, sequence, body: append.body.clone() };
                        answers.push(Answer::Batches(vec![placed]));
                    } else if !self.listens {
                        // Without announcements, this host has to fetch the batches before its own.
                        cursor.learn_head(head);
                    }
                }
                Ok(answers)
            }
            ("overtaken", _) => Ok(vec![Answer::Overtaken { host, sequence, ends: append.ends }]),
            ("replaced", _) => Err(PostgresError::replaced()),
            (verdict, _) => {
                let (last, ended) = (row.number(2).unwrap_or(0), row.number(3).unwrap_or(0));
                Ok(vec![Answer::Fenced { host, why: fenced(verdict, append, last, ended) }])
            }
        }
    }

    /// The statements to send. They contain only numbers, hexadecimal digits and the name of the
    /// schema, which needs no quoting.
    fn statements(&self, append: &Append) -> String {
        // Tables with another oid come from a dump that was loaded after this session began.
        let (schema, table) = (&self.schema, self.seen.table);
        let (host, sequence) = (append.host.0, append.sequence);
        let before = sequence.wrapping_sub(1);
        let other = append.ends.map_or(host, |ends| ends.host.0);
        let ends = append.ends.map_or_else(|| "NULL".to_owned(), |ends| ends.host.0.to_string());
        let overtaken = match append.ends.map(|ends| ends.evidence) {
            None => "false".to_owned(),
            // The server itself does not judge whether a host is alive.
            Some(Evidence::Lapsed) => "true".to_owned(),
            Some(Evidence::Unknown) => {
                format!(r#"EXISTS (SELECT FROM "{schema}".hosts WHERE host = {ends})"#)
            }
            Some(Evidence::Own) => "NOT EXISTS (SELECT FROM other)".to_owned(),
            Some(Evidence::Silent { renewals }) => {
                format!("NOT EXISTS (SELECT FROM other WHERE renewals = {renewals})")
            }
        };
        let payload = self.seal.payload(append);
        let nonce = self.known.is_own(append.host);
        let body = const_hex::encode(&append.body);
        // Each statement sees everything that was committed before it began, so the statements take
        // the locks first: the lock of the head, which every append takes, then that of the hosts,
        // which stops their renewal counters.
        format!(
            r#"SELECT FROM "{schema}".head FOR UPDATE;
SELECT FROM "{schema}".hosts WHERE host IN ({host}, {other}) ORDER BY host FOR UPDATE;
WITH batch AS MATERIALIZED (SELECT '\x{body}'::bytea AS body),
me AS MATERIALIZED (SELECT * FROM "{schema}".hosts WHERE host = {host} {nonce}),
other AS (SELECT renewals FROM "{schema}".hosts WHERE host = {ends} AND ended IS NULL),
judged AS MATERIALIZED (SELECT CASE
    WHEN (SELECT tableoid <> {table} FROM "{schema}".head) THEN 'replaced'
    WHEN (SELECT me.sequence = {sequence} AND me.hash = sha256(batch.body) FROM me, batch) THEN 'again'
    WHEN NOT EXISTS (SELECT FROM me) THEN 'unknown'
    WHEN (SELECT ended IS NOT NULL FROM me) THEN 'ended'
    WHEN (SELECT sequence <> {before} FROM me) THEN 'order'
    WHEN {overtaken} THEN 'overtaken'
    ELSE 'append' END AS verdict),
head AS (UPDATE "{schema}".head SET position = position + 1
    WHERE (SELECT verdict FROM judged) = 'append' RETURNING position, epoch),
log AS (INSERT INTO "{schema}".log (position, host, sequence, body)
    SELECT head.position, {host}, {sequence}, batch.body FROM head, batch),
hosts AS (UPDATE "{schema}".hosts AS h SET
    sequence = CASE WHEN h.host = {host} THEN {sequence} ELSE h.sequence END,
    hash = CASE WHEN h.host = {host} THEN sha256(batch.body) ELSE h.hash END,
    placed = CASE WHEN h.host = {host} THEN head.position ELSE h.placed END,
    ended = CASE WHEN h.host = {ends} THEN head.position ELSE h.ended END
    FROM head, batch WHERE h.host IN ({host}, {other})),
told AS MATERIALIZED (SELECT pg_notify('{schema}', {payload}) FROM head)
SELECT verdict, coalesce((SELECT position FROM head), (SELECT placed FROM me)),
    (SELECT sequence FROM me), (SELECT ended FROM me), (SELECT count(*) FROM told) IS NULL
FROM judged"#
        )
    }

    /// Notes an era, with a batch in the log, if the previous era is still the last on the server.
    /// Afterwards, the session knows the server's present era.
    pub(crate) async fn note(&mut self, begun: Era) -> Result<()> {
        let row = self.row(&self.noting(&begun)).await?;
        if let Some(position) = row.number(0) {
            self.seen.noted = Some(begun);
            self.seen.position = position;
            self.known.sees(&self.seen);
            return Ok(());
        }
        let noted = noted(row.number(1).unwrap_or(0), row.text(2));
        let before = std::mem::replace(&mut self.seen.noted, noted);
        self.seen.position = row.number(3).unwrap_or(0);
        if self.seen.noted == before { Err(PostgresError::replaced()) } else { Ok(()) }
    }

    /// The statements that note an era, in one message and so in one transaction. They take the
    /// lock of the head as an append does.
    fn noting(&self, begun: &Era) -> String {
        let (schema, table) = (&self.schema, self.seen.table);
        let numbered = |era: &Era| (era.number, era.sign.replace('\'', "''"));
        let (number, sign) = numbered(begun);
        let (before, before_sign) = self.seen.noted.as_ref().map(numbered).unwrap_or_default();
        let body = const_hex::encode(begun.batch(UnixMillis(clock::unix_ms())));
        format!(
            r#"SELECT FROM "{schema}".head FOR UPDATE;
WITH head AS (UPDATE "{schema}".head
    SET position = position + 1, era = {number}, era_sign = '{sign}'
    WHERE era = {before} AND era_sign = '{before_sign}' AND tableoid = {table}
    RETURNING position),
log AS (INSERT INTO "{schema}".log (position, host, sequence, body)
    SELECT head.position, 0, {number}, '\x{body}'::bytea FROM head),
told AS MATERIALIZED (SELECT pg_notify('{schema}', position::text) FROM head)
SELECT (SELECT position FROM head), era, era_sign, position, (SELECT count(*) FROM told) IS NULL
FROM "{schema}".head"#
        )
    }

    /// Whether there is more to read.
    pub(crate) fn is_behind(&self) -> bool {
        self.cursor.is_some_and(|cursor| cursor.head > cursor.after)
    }

    /// Reads the whole log as of one instant, and follows it from there.
    pub(crate) async fn load(&mut self) -> Result<Answer> {
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
        let batches = log.iter().map(|row| placed(row, 0)).collect::<Result<Vec<_>>>()?;
        let parts = parts.iter().map(|part| Ok(part.try_get::<_, &[u8]>(0)?));
        let body = parts.collect::<Result<Vec<_>>>()?.concat();
        let snapshot = (position > 0).then_some(Stored { position: Position(position), body });
        let after = batches.last().map_or(position, |last| last.position.0);
        self.cursor = Some(Cursor::at(after));
        Ok(Answer::Loaded { snapshot, batches })
    }

    /// Follows the log after a batch, if the log still contains that batch as it was read.
    pub(crate) async fn follow(&mut self, after: Option<Read>) -> Result<Answer> {
        self.cursor = None;
        if let Some(answer) = self.differs(after).await? {
            return Ok(answer);
        }
        self.cursor = Some(Cursor::at(after.map_or(0, |read| read.position.0)));
        let more = self.page().await?;
        Ok(more.unwrap_or(Answer::Batches(Vec::new())))
    }

    /// How the log differs from what was read; `None` if it continues from there.
    async fn differs(&self, after: Option<Read>) -> Result<Option<Answer>> {
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
            self.known.reaches(head);
            return Some(Answer::Batches(vec![placed]));
        }
        cursor.learn_head(head);
        None
    }

    /// Reads the next batches, if there are any.
    pub(crate) async fn page(&mut self) -> Result<Option<Answer>> {
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
        // Without a further batch, there is one row with the head alone.
        let further = if number_if_any(first, 2)?.is_some() { rows.as_slice() } else { &[] };
        let batches = further.iter().map(|row| placed(row, 2)).collect::<Result<Vec<_>>>()?;
        cursor.after = batches.last().map_or(cursor.after, |last| last.position.0);
        // An announced batch that is not there was not meant for this table.
        cursor.head = head.max(cursor.after);
        self.known.reaches(head);
        Ok(if batches.is_empty() { None } else { Some(Answer::Batches(batches)) })
    }

    /// Replaces the snapshot, unless the stored one is at least as new. If it fails, a transaction
    /// may be open.
    pub(crate) async fn store(&mut self, stored: &Stored) -> Result<Answer> {
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
        let delete = format!(
            r#"DELETE FROM "{schema}".snapshot WHERE position < {position};
DELETE FROM "{schema}".log WHERE position < {position};
DELETE FROM "{schema}".hosts WHERE ended < {position}"#
        );
        self.client.batch_execute(&delete).await?;
        // Others wait for the head, so it comes last, in one message with the commit.
        let moved = format!(
            r#"SELECT FROM "{schema}".head FOR UPDATE;
UPDATE "{schema}".head SET snapshot = {position} WHERE snapshot < {position};
DELETE FROM "{schema}".snapshot WHERE position < (SELECT snapshot FROM "{schema}".head);
SELECT snapshot FROM "{schema}".head;
COMMIT"#
        );
        let now = self.row(&moved).await?.number(0);
        Ok(Answer::Stored { position: now.map_or(stored.position, Position) })
    }
}

/// The batch whose columns begin at `column`.
fn placed(row: &Row, column: usize) -> Result<Placed> {
    Ok(Placed {
        position: Position(number(row, column)?),
        host: HostId(number(row, column + 1)?),
        sequence: number(row, column + 2)?,
        body: row.try_get(column + 3)?,
    })
}

fn fenced(verdict: &str, append: &Append, last: u64, ended: u64) -> String {
    let (host, sequence) = (append.host.0, append.sequence);
    match verdict {
        "ended" => not_alive(append.host, Some(ended)),
        "unknown" => not_alive(append.host, None),
        _ if sequence <= last => {
            format!("batch {sequence} of incarnation {host} has other contents in the log")
        }
        _ => format!(
            "batch {sequence} of incarnation {host} is out of order: the last one in the log is \
             {last}"
        ),
    }
}
