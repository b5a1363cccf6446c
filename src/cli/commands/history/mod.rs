//! `canal history`: shows which requests ended, when and how, and how long they waited and held
//! their locks.

mod csv;
pub(super) mod page;
pub(crate) mod stats;
pub(crate) mod trace;

pub(super) use trace::slots;

use std::time::Duration;

use serde::Serialize;

use crate::cli::arguments::definition::HistoryArgs;
use crate::cli::arguments::duration::{Length, millis, short};
use crate::cli::commands::status::Screen;
use crate::cli::find_job::{add_numbers_of_ended, session_of};
use crate::cli::{Failed, Global, Now, Target, stdout};
use crate::client::Client;
use crate::protocol::{HistoryPage, HistoryQuery, HistoryRecord};
use crate::run::SUCCESS;
use crate::run::jobs::Folder;

/// How many records to show if the user passes no count.
const SHOWN: u64 = 50;

/// The `--json` output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct History {
    /// The records, the oldest first.
    pub(super) records: Vec<HistoryRecord>,
    /// How many records the daemon has dropped since it started.
    pub(super) dropped: u64,
}

pub(crate) fn run(args: &HistoryArgs, global: &Global) -> Result<u8, Failed> {
    let target = Target::of(global)?;
    let mut client = target.connect()?;
    let session = session_of(args.key.as_ref(), &target, &mut client)?;
    let mut found = ask(&mut client, args, session)?;
    add_numbers_of_ended(&mut found.records, &Folder::of(&target.place));
    if args.json {
        stdout::print_json(&found)?;
    } else if args.csv {
        stdout::print(&csv::text(&found.records))?;
    } else {
        let columns = Screen::of_stdout().map(|screen| screen.columns);
        let page = page::page(&found.records, found.dropped, &Now::here());
        stdout::print_styled(&page.render(columns))?;
    }
    Ok(SUCCESS)
}

/// Asks for the records that the command line selects.
fn ask(
    client: &mut Client,
    args: &HistoryArgs,
    session: Option<String>,
) -> Result<History, Failed> {
    let all = if args.json || args.csv { u64::MAX } else { SHOWN };
    let query = HistoryQuery {
        key: args.key.as_ref().filter(|_| session.is_none()).map(ToString::to_string),
        since_ms: args.since.and_then(Length::finite).map(millis),
        uid: args.user,
        session,
        failed: args.failed,
        ..HistoryQuery::default()
    };
    ask_all(client, query, args.count.unwrap_or(all))
}

/// Asks for the latest records of a key and of the keys below it.
pub(super) fn of_key(client: &mut Client, key: &str) -> Result<History, Failed> {
    let query = HistoryQuery { key: Some(key.to_owned()), ..HistoryQuery::default() };
    ask_all(client, query, SHOWN)
}

/// Asks for one page after the other until there are as many records as requested.
fn ask_all(client: &mut Client, query: HistoryQuery, count: u64) -> Result<History, Failed> {
    let (mut query, mut left) = (query, count);
    let mut found = History::default();
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
