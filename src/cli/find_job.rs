//! Finds the record of a job, and the key or job that an operand names.

use std::io;

use crate::cli::arguments::parse_value::job;
use crate::cli::{Failed, Result, Target};
use crate::client::Client;
use crate::core::Key;
use crate::protocol::{HistoryRecord, Status, StatusQuery};
use crate::run::job_files::{Folder, JobEnd, Record};
use crate::sys::process::user::geteuid;

/// How far the history and the record of a job may differ about its end, in milliseconds.
const RECORDED_WITHIN_MS: u64 = 60_000;

/// The job with this number.
pub(crate) fn numbered(target: &Target, number: u64) -> Result<Record> {
    record(target, number)?.ok_or_else(|| none(format!("you have no job {number} here")))
}

/// The job with this number; else the latest job that asked for this key; without a text, the
/// latest job.
pub(crate) fn named(target: &Target, text: Option<&str>) -> Result<Record> {
    let folder = Folder::of(&target.place);
    let number = text.and_then(|text| job(text).ok());
    if let Some(found) = number.map(|number| record(target, number)).transpose()?.flatten() {
        return Ok(found);
    }
    for number in folder.numbers().map_err(unreadable)?.into_iter().rev() {
        // A job may have been removed since.
        let Some(record) = folder.job(number).map_err(unreadable)? else { continue };
        if text.is_none_or(|key| record.job.keys.iter().any(|it| it == key)) {
            return Ok(record);
        }
    }
    Err(none(match (text, number) {
        (None, _) => "you have no jobs here".to_owned(),
        (Some(_), Some(number)) => format!("you have no job {number} here"),
        (Some(key), None) => format!("you have no job for `{key}` here"),
    }))
}

/// The daemon, with the key that an operand names there, or with the session of the job that it
/// names in place of a key: `%17` always, and `17` if the user has such a job and the table has no
/// such key.
pub(crate) fn look_up<'a>(
    operand: Option<&'a Key>,
    target: &Target,
) -> Result<(Client, Option<&'a Key>, Option<String>)> {
    let mut client = target.connect()?;
    let numbered = operand.and_then(|key| Some((key.as_str(), job(key.as_str()).ok()?)));
    let Some((text, number)) = numbered else { return Ok((client, operand, None)) };
    if !text.starts_with('%') {
        let query = StatusQuery { key: Some(text.to_owned()), ..StatusQuery::default() };
        if record(target, number)?.is_none() || !client.status(&query)?.keys.is_empty() {
            return Ok((client, operand, None));
        }
    }
    Ok((client, None, Some(session(target, number)?)))
}

/// The name of a job's session. A job of another user has no record here, and usually keeps its
/// first session.
pub(crate) fn session(target: &Target, number: u64) -> Result<String> {
    Ok(record(target, number)?.map_or_else(|| format!("s{number}"), |record| record.job.session()))
}

/// Adds the numbers of this user's jobs to their holders and waiters.
pub(crate) fn add_numbers(status: &mut Status, folder: &Folder) {
    let user = geteuid().as_raw();
    let number = |uid: u32, session: &str| {
        let record = of_session(session, folder).filter(|_| uid == user)?;
        // An earlier table may have had a session with the same number.
        record.job.end.is_none().then_some(record.job.number)
    };
    for key in &mut status.keys {
        key.holders.iter_mut().for_each(|it| it.job = number(it.uid, &it.session));
        key.waiters.iter_mut().for_each(|it| it.job = number(it.uid, &it.session));
    }
}

/// Adds the numbers of this user's jobs to the records of their requests.
pub(crate) fn add_numbers_of_ended(records: &mut [HistoryRecord], folder: &Folder) {
    let user = geteuid().as_raw();
    for record in records.iter_mut().filter(|record| record.uid == user) {
        let found = record.session.as_deref().and_then(|session| of_session(session, folder));
        // An earlier table may have had a session with the same number, at another time.
        let is_near = |end: JobEnd| record.ended_ms.abs_diff(end.ended_ms) < RECORDED_WITHIN_MS;
        let is_its =
            |it: &Record| record.ended_ms >= it.job.at_ms && it.job.end.is_none_or(is_near);
        record.job = found.filter(is_its).map(|found| found.job.number);
    }
}

fn of_session(session: &str, folder: &Folder) -> Option<Record> {
    folder.job(session.strip_prefix('s')?.parse().ok()?).ok()?
}

fn record(target: &Target, number: u64) -> Result<Option<Record>> {
    Folder::of(&target.place).job(number).map_err(unreadable)
}

fn none(message: String) -> Failed {
    Failed::new(message)
        .hint("canal finds only jobs that you submitted on this machine to this daemon")
}

pub(crate) fn unreadable(error: io::Error) -> Failed {
    Failed::new(format!("cannot read the record of the job: {error}"))
}
