//! `canal metrics`: prints the daemon's metrics for a monitoring system.

use crate::cli::arguments::definition::Global;
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::stdout;
use crate::protocol::MetricsQuery;
use crate::run::SUCCESS;

/// Prints the metrics. If the reader goes away, that is a failure, because a collector of files
/// would take half of them for all.
pub(crate) fn run(global: &Global) -> Result<u8, Failed> {
    let found = connect::client(global)?.metrics(&MetricsQuery {}).map_err(connect::failed)?;
    stdout::print_or_fail(&found.text)?;
    Ok(SUCCESS)
}
