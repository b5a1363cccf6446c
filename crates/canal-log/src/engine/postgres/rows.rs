//! Reads the rows of the server's answers.

use tokio_postgres::{Error, Row, SimpleQueryMessage, SimpleQueryRow};

/// The number in a column.
pub(super) fn number(row: &Row, column: usize) -> Result<u64, Error> {
    row.try_get(column).map(unsigned)
}

/// The number in a column that may be empty.
pub(super) fn number_if_any(row: &Row, column: usize) -> Result<Option<u64>, Error> {
    Ok(row.try_get::<_, Option<i64>>(column)?.map(unsigned))
}

/// The server's own numbers are signed, but none of canal's numbers is negative.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A row whose columns are text.
pub(super) struct TextRow(SimpleQueryRow);

impl TextRow {
    /// The last row of an answer.
    pub(super) fn last(messages: Vec<SimpleQueryMessage>) -> Option<Self> {
        messages.into_iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(Self(row)),
            _ => None,
        })
    }

    /// The text in a column; empty if there is none.
    pub(super) fn text(&self, column: usize) -> &str {
        self.0.try_get(column).ok().flatten().unwrap_or_default()
    }

    /// The number in a column, if there is one.
    pub(super) fn number<T: std::str::FromStr>(&self, column: usize) -> Option<T> {
        self.text(column).parse().ok()
    }
}
