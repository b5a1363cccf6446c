//! `canal trace`: prints ended requests as a trace in the Chrome trace-event format, for
//! ui.perfetto.dev.

use super::{ask_all, finite, rows};
use crate::cli::arguments::definition::{Global, TraceArgs};
use crate::cli::arguments::duration::millis;
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::protocol::HistoryQuery;
use crate::run::SUCCESS;

/// Prints a trace. If the reader goes away, that is a failure, because half a trace is useless.
pub(crate) fn run(args: &TraceArgs, global: &Global, _: Verbosity) -> Result<u8, Failed> {
    let query = HistoryQuery {
        key: args.key.as_ref().map(|key| key.as_str().to_owned()),
        since_ms: args.since.and_then(finite).map(millis),
        ..HistoryQuery::default()
    };
    let mut client = connect::client(global)?;
    let found = ask_all(&mut client, query, u64::MAX)?;
    let mut text = String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (number, event) in rows::events(&found.records).iter().enumerate() {
        text.push_str(if number == 0 { "\n" } else { ",\n" });
        text.push_str(stdout::json(event)?.trim_end());
    }
    text.push_str("\n]}\n");
    stdout::print_or_fail(&text)?;
    Ok(SUCCESS)
}
