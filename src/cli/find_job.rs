//! Finds the record of a job.

use std::io;

use crate::cli::arguments::number::job;
use crate::cli::connect::{self, Target};
use crate::cli::failed::Failed;
use crate::client::Client;
use crate::core::Key;
use crate::protocol::StatusQuery;
use crate::run::jobs::{Folder, Record};

/// The job with this number.
pub(in crate::cli) fn numbered(target: &Target, number: u64) -> Result<Record, Failed> {
    let found = Folder::of(&target.place).job(number).map_err(unreadable)?;
    found.ok_or_else(|| none(format!("you have no job {number} here")))
}

/// The job with this number; else the latest job that asked for this key; without a text, the
/// latest job.
pub(in crate::cli) fn named(target: &Target, text: Option<&str>) -> Result<Record, Failed> {
    let folder = Folder::of(&target.place);
    let number = text.and_then(|text| job(text).ok());
    if let Some(number) = number
        && let Some(record) = folder.job(number).map_err(unreadable)?
    {
        return Ok(record);
    }
    for number in folder.numbers().map_err(unreadable)?.into_iter().rev() {
        // A job may have been removed since.
        let Some(record) = folder.job(number).map_err(unreadable)? else { continue };
        if text.is_none_or(|key| record.submitted.keys.iter().any(|it| it == key)) {
            return Ok(record);
        }
    }
    Err(none(match (text, number) {
        (None, _) => "you have no jobs here".to_owned(),
        (Some(_), Some(number)) => format!("you have no job {number} here"),
        (Some(key), None) => format!("you have no job for `{key}` here"),
    }))
}

/// The session of the job that an operand names in place of a key: `%17` always, and `17` if the
/// user has such a job and the table has no such key.
pub(in crate::cli) fn session_of(
    operand: Option<&Key>,
    target: &Target,
    client: &mut Client,
) -> Result<Option<String>, Failed> {
    let Some(text) = operand.map(Key::as_str) else { return Ok(None) };
    let Ok(number) = job(text) else { return Ok(None) };
    if !text.starts_with('%') {
        if Folder::of(&target.place).job(number).map_err(unreadable)?.is_none() {
            return Ok(None);
        }
        let query = StatusQuery { key: Some(text.to_owned()), ..StatusQuery::default() };
        if !client.status(&query).map_err(connect::failed)?.keys.is_empty() {
            return Ok(None);
        }
    }
    Ok(Some(session(number)))
}

/// The name of a job's session.
pub(in crate::cli) fn session(job: u64) -> String {
    format!("s{job}")
}

fn none(message: String) -> Failed {
    Failed::new(message)
        .hint("a job belongs to the user, the machine and the daemon that it was submitted with")
}

pub(in crate::cli) fn unreadable(error: io::Error) -> Failed {
    Failed::new(format!("cannot read the record of the job: {error}"))
}
