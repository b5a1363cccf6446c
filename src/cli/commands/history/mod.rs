//! `canal history`: shows which requests ended, when and how, and how long they waited and held
//! their locks.

mod csv;
pub(super) mod page;
pub(crate) mod stats;
pub(crate) mod trace;

pub(super) use trace::slots;

use std::time::Duration;

use crate::cli::arguments::definition::HistoryArgs;
use crate::cli::commands::status::print;
use crate::cli::find_job::{add_numbers_of_ended, look_up};
use crate::cli::{Global, Length, Now, Result, Target, millis, short, stdout};
use crate::client::Client;
use crate::protocol::{HistoryPage, HistoryQuery};
use crate::run::jobs::Folder;

/// How many records to show if the user passes no count.
const SHOWN: u64 = 50;

pub(crate) fn run(args: &HistoryArgs, global: &Global) -> Result {
    let target = Target::of(global)?;
    let (mut client, key, session) = look_up(args.key.as_ref(), &target)?;
    let query = HistoryQuery {
        key: key.map(ToString::to_string),
        since_ms: args.since.and_then(Length::finite).map(millis),
        uid: args.user,
        session,
        failed: args.failed,
        ..HistoryQuery::default()
    };
    let all = if args.json || args.csv { u64::MAX } else { SHOWN };
    let mut found = ask_all(&mut client, query, args.count.unwrap_or(all))?;
    add_numbers_of_ended(&mut found.records, &Folder::of(&target.place));
    if args.json || args.csv {
        return stdout::report(&found, args.json, || csv::text(&found.records));
    }
    print(&page::page(&found.records, found.dropped, &Now::here()))
}

/// Asks for the latest records of a key and of the keys below it.
pub(super) fn of_key(client: &mut Client, key: &str) -> Result<HistoryPage> {
    let query = HistoryQuery { key: Some(key.to_owned()), ..HistoryQuery::default() };
    ask_all(client, query, SHOWN)
}

/// Asks for one page after the other until there are as many records as requested. Returns them all
/// in one page, the oldest first.
fn ask_all(client: &mut Client, query: HistoryQuery, count: u64) -> Result<HistoryPage> {
    let (mut query, mut left) = (query, count);
    let mut found = HistoryPage::default();
    loop {
        query.limit = Some(left);
        let HistoryPage { mut records, before, dropped } = client.history(&query)?;
        records.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= records.len() as u64;
        found.records.append(&mut records);
        found.dropped = dropped;
        // If the next page is not older than this one, this one counts as the last.
        let goes_on = before.filter(|next| query.before.is_none_or(|last| *next < last));
        let Some(next) = goes_on.filter(|_| left > 0) else { break };
        query.before = Some(next);
    }
    found.records.reverse();
    Ok(found)
}

/// `0.3s`, `42s`, `3m12s`.
fn length(ms: u64) -> String {
    if ms < 10_000 {
        return format!("{}.{}s", ms / 1000, ms % 1000 / 100);
    }
    short(Duration::from_millis(ms))
}
