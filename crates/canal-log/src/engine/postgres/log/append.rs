//! Appends batches to the log.
//!
//! An append is one message to the server, whose statements form one transaction. So the server
//! never waits for this host while others wait for the row of the head.
//!
//! Invariant: positions follow the order of commits, without gaps. The row of the head stays locked
//! from the moment when a position is taken until the commit. The server shows a transaction to
//! others before it releases its locks, so a reader that sees a position sees all earlier ones.

use crate::engine::position::to_hex;
use crate::engine::postgres::error::PostgresError;
use crate::engine::postgres::session::connection::{Session, first_row};
use crate::engine::{Answer, Append, Evidence, Placed, Position};

impl Session {
    /// Appends a batch. Also reports whether the batch directly follows the last one that was read.
    pub(crate) async fn append(&mut self, append: &Append) -> Result<Vec<Answer>, PostgresError> {
        let asked = self.statements(append);
        let row = first_row(&self.client.simple_query(&asked).await?);
        let [verdict, position, last, ended, _] = row.as_slice() else {
            return Err(PostgresError::away("cannot parse the server's answer"));
        };
        let number = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
        let (host, sequence) = (append.host, append.sequence);
        match (verdict.as_deref(), number(position)) {
            (Some("again" | "append"), Some(position)) => {
                self.knows(position);
                let mut answers =
                    vec![Answer::Appended { host, sequence, position: Position(position) }];
                // Without announcements, this host has to fetch the batches before its own.
                if let Some(cursor) = self.cursor.as_mut().filter(|_| !self.listens) {
                    cursor.learn_head(position);
                }
                // The next batch in the log is known, so there is nothing to fetch.
                if let Some(cursor) = self.cursor.as_mut().filter(|it| it.next_is(position)) {
                    cursor.read_to(position);
                    let body = append.body.clone();
                    let position = Position(position);
                    answers.push(Answer::Batches(vec![Placed { position, host, sequence, body }]));
                }
                Ok(answers)
            }
            (Some("overtaken"), _) => {
                Ok(vec![Answer::Overtaken { host, sequence, ends: append.ends }])
            }
            (Some("replaced"), _) => Err(PostgresError::replaced()),
            (verdict, _) => {
                let (last, ended) = (number(last).unwrap_or(0), number(ended).unwrap_or(0));
                let why = fenced(verdict.unwrap_or_default(), append, last, ended);
                Ok(vec![Answer::Fenced { host, why }])
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
        let nonce = match self.known.nonces.get(&host) {
            Some(nonce) => format!("AND nonce = '\\x{nonce:032x}'"),
            None => String::new(),
        };
        let body = to_hex(&append.body);
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
}

fn fenced(verdict: &str, append: &Append, last: u64, ended: u64) -> String {
    let (host, sequence) = (append.host.0, append.sequence);
    match verdict {
        "ended" => format!("incarnation {host} was ended at position {ended}"),
        "unknown" => format!("the log has no incarnation {host} of this daemon"),
        _ if sequence <= last => {
            format!("batch {sequence} of incarnation {host} has other contents in the log")
        }
        _ => format!(
            "batch {sequence} of incarnation {host} is out of order: the last one in the log is \
             {last}"
        ),
    }
}
