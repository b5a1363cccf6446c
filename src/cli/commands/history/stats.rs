//! `canal stats`: how long requests waited and held their locks, by user and by command.

use std::time::Duration;

use anstyle::Style;

use super::{finite, length};
use crate::cli::arguments::definition::{Global, StatsArgs};
use crate::cli::arguments::duration::{millis, stated};
use crate::cli::commands::status::Screen;
use crate::cli::commands::status::page::{COLUMNS, Page};
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::sanitize::command_line;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::wording::participant::plural;
use crate::cli::wording::user_name;
use crate::protocol::{HistoryCount, HistoryStats, HistoryStatsQuery};
use crate::run::SUCCESS;

/// How many users and how many commands are shown to a person.
const SHOWN: usize = 10;

const NAMES: [&str; COLUMNS] = ["", "MEDIAN", "COUNT", "P90", "P99", "MAX", "OF"];
const PLAIN: Style = Style::new();
const FAINT: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

pub(crate) fn run(args: &StatsArgs, global: &Global, _: Verbosity) -> Result<u8, Failed> {
    let since = args.since.and_then(finite);
    let query = HistoryStatsQuery {
        key: args.key.as_ref().map(|key| key.as_str().to_owned()),
        since_ms: since.map(millis),
        uid: args.user,
    };
    let found = connect::client(global)?.history_stats(&query).map_err(connect::failed)?;
    if args.json {
        stdout::print(&stdout::json(&found)?)?;
    } else {
        let columns = Screen::of_stdout().map(|screen| screen.columns);
        let about = args.key.as_ref().map_or("all keys", |key| key.as_str());
        stdout::print_styled(&page(&found, about, since).render(columns))?;
    }
    Ok(SUCCESS)
}

fn page(found: &HistoryStats, about: &str, since: Option<Duration>) -> Page {
    let mut page = Page::default();
    let HistoryCount { count, refused, .. } = found.all;
    let within = since.map(|length| format!(" in {}", stated(length))).unwrap_or_default();
    let granted = plural(count.saturating_sub(refused), "grant", "grants");
    page.title(about.to_owned(), format!("{granted}{within}, {refused} never granted"), BOLD);
    if count > refused {
        page.cells(NAMES.map(str::to_owned), FAINT);
        rows(&mut page, &found.all, "everything");
    }
    if found.users.len() > 1 {
        for user in found.users.iter().filter(|it| it.count > it.refused).take(SHOWN) {
            rows(&mut page, user, &user_name::name(user.uid.unwrap_or(0)));
        }
    }
    for of in found.commands.iter().filter(|it| it.count > it.refused).take(SHOWN) {
        let command = command_line(of.command.as_deref().unwrap_or_default());
        rows(&mut page, of, &command);
    }
    if found.left_out || found.users.len() > SHOWN || found.commands.len() > SHOWN {
        page.note("more users or commands are left out; --json shows more".to_owned(), FAINT);
    }
    page
}

fn rows(page: &mut Page, of: &HistoryCount, name: &str) {
    let granted = (of.count - of.refused).to_string();
    for (what, lengths) in [("waits", &of.waits), ("holds", &of.holds)] {
        let cells = [
            what.to_owned(),
            length(lengths.median_ms),
            granted.clone(),
            length(lengths.p90_ms),
            length(lengths.p99_ms),
            length(lengths.max_ms),
            name.to_owned(),
        ];
        page.cells(cells, PLAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::HistoryLengths;

    fn of(count: u64, command: Option<&str>) -> HistoryCount {
        let lengths =
            |ms| HistoryLengths { median_ms: ms, p90_ms: 2 * ms, p99_ms: 3 * ms, max_ms: 192_000 };
        HistoryCount {
            uid: command.map(|_| 0),
            command: command.map(str::to_owned),
            count,
            refused: 2,
            waits: lengths(100),
            holds: lengths(20_000),
        }
    }

    #[test]
    fn waits_and_holds_have_a_line_each() {
        let found = HistoryStats {
            all: of(12, None),
            users: vec![of(12, Some(""))],
            commands: vec![of(7, Some("make  -j4"))],
            left_out: false,
            dropped: 0,
        };
        let text = page(&found, "deploy", Some(Duration::from_secs(3600))).render(Some(80));
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "deploy  10 grants in 1h00m, 2 never granted\n         \
             MEDIAN  COUNT  P90   P99    MAX    OF\n  \
             waits  0.1s    10     0.2s  0.3s   3m12s  everything\n  \
             holds  20s     10     40s   1m00s  3m12s  everything\n  \
             waits  0.1s    5      0.2s  0.3s   3m12s  make -j4\n  \
             holds  20s     5      40s   1m00s  3m12s  make -j4\n"
        );
        let none = page(&HistoryStats::default(), "all keys", None).render(None);
        assert_eq!(
            anstream::adapter::strip_str(&none).to_string(),
            "all keys  0 grants, 0 never granted\n"
        );
    }
}
