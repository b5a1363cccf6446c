//! `canal leader`: shows the leader that holds a lock.

mod over_nodes;

use serde::Serialize;

use crate::cli::arguments::definition::{Global, LeaderArgs};
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::sanitize::sanitize;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout::{self, ReaderState};
use crate::cli::wording::participant::{COMMAND_COLUMNS, holder};
use crate::cli::wording::time::Now;
use crate::client::{Client, Watch};
use crate::protocol::{HolderInfo, Leader, LeaderQuery};
use crate::run::{OwnCode, SUCCESS};

/// The message if the daemon cannot reach its engine.
const STALE: &str = "the daemon cannot reach its engine: this may be out of date";

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    key: &'a str,
    leader: Option<&'a HolderInfo>,
    stale: bool,
}

pub(crate) fn run(args: &LeaderArgs, global: &Global, verbosity: Verbosity) -> Result<u8, Failed> {
    if args.nodes.is_given() {
        return over_nodes::run(args, global, verbosity);
    }
    let query = LeaderQuery { key: args.name.as_str().to_owned() };
    let mut client = connect::client(global)?;
    if args.watch {
        return watch(&mut client, query);
    }
    let found = client.leader(&query).map_err(connect::failed)?;
    if args.json {
        stdout::print(&line(&query.key, &found)?)?;
    } else if let Some(leader) = &found.leader {
        stdout::print(&text(&query.key, leader, &Now::here()))?;
    }
    if found.stale {
        verbosity.note(STALE);
    }
    if found.leader.is_some() {
        return Ok(SUCCESS);
    }
    verbosity.note(&format!("`{}` has no leader: no one holds it", query.key));
    Err(Failed::silent(OwnCode::NotAcquired.number()))
}

/// Prints a line for the leader now and after each change, until the output has no reader left.
fn watch(client: &mut Client, query: LeaderQuery) -> Result<u8, Failed> {
    let key = query.key.clone();
    let mut watch = Watch::of_leader(query);
    let mut last = None;
    while let Some(found) = watch.next(client, None).map_err(connect::failed)? {
        // The first state from the next daemon may repeat the last one.
        let news = Some(News::of(&found));
        if news == last {
            continue;
        }
        last = news;
        if stdout::print(&line(&key, &found)?)? == ReaderState::Gone {
            break;
        }
    }
    Ok(SUCCESS)
}

/// The facts about a leader whose change is news.
#[derive(Debug, PartialEq, Eq)]
struct News {
    /// The leader's token and note.
    leader: Option<(u64, Option<String>)>,
    stale: bool,
}

impl News {
    fn of(found: &Leader) -> Self {
        let leader = found.leader.as_ref().map(|leader| (leader.token, leader.note.clone()));
        Self { leader, stale: found.stale }
    }
}

fn line(key: &str, found: &Leader) -> Result<String, Failed> {
    stdout::json(&Line { key, leader: found.leader.as_ref(), stale: found.stale })
}

/// `scheduler is led by pid 812 …`, with its start and its token.
pub(in crate::cli) fn text(key: &str, leader: &HolderInfo, now: &Now) -> String {
    let (key, who) = (sanitize(key), holder(leader, COMMAND_COLUMNS, now));
    let since = now.clock(&leader.since);
    format!("{key} is led by {who}\n  since {since}, token {}\n", leader.token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::participant::tests::somebody;
    use crate::cli::wording::time::tests::at;

    const SINCE: &str = "2026-11-20T14:02:11Z";

    #[test]
    fn a_leader_is_shown_with_its_note_and_its_token() {
        let mut leader = somebody(812, Some("./scheduler"), SINCE);
        leader.note = Some("http://web2:8080".to_owned());
        assert_eq!(
            text("scheduler", &leader, &at("2026-11-20T14:05:23Z")),
            "scheduler is led by pid 812 `./scheduler` (root, for 3m12s), note: http://web2:8080\n  \
             since 14:02:11, token 77\n"
        );
    }

    #[test]
    fn a_line_says_that_there_is_no_leader() {
        let line = line("scheduler", &Leader::new(None, false)).unwrap();
        assert_eq!(line, "{\"key\":\"scheduler\",\"leader\":null,\"stale\":false}\n");
    }

    #[test]
    fn another_token_or_note_is_news_and_another_age_is_not() {
        let of = |token, note: Option<&str>, since: &str| {
            let mut leader = somebody(812, None, since);
            (leader.token, leader.note) = (token, note.map(str::to_owned));
            News::of(&Leader::new(Some(leader), false))
        };
        let first = of(1, Some("a"), SINCE);
        assert_eq!(first, of(1, Some("a"), "2026-11-20T15:00:00Z"));
        assert_ne!(first, of(2, Some("a"), SINCE));
        assert_ne!(first, of(1, Some("b"), SINCE));
        assert_ne!(first, News::of(&Leader::new(None, false)));
        assert_ne!(News::of(&Leader::new(None, true)), News::of(&Leader::new(None, false)));
    }
}
