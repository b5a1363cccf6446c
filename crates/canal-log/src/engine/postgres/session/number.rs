//! Numbers in the answers of the server, whose own numbers are signed.

use tokio_postgres::{Error, Row};

/// The number in a column.
pub(crate) fn number(row: &Row, column: usize) -> Result<u64, Error> {
    row.try_get(column).map(unsigned)
}

/// The number in a column that may be empty.
pub(crate) fn number_if_any(row: &Row, column: usize) -> Result<Option<u64>, Error> {
    Ok(row.try_get::<_, Option<i64>>(column)?.map(unsigned))
}

/// None of canal's numbers is negative.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
