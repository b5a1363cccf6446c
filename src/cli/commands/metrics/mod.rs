//! `canal metrics`: the daemon's figures for a monitor.

use crate::cli::arguments::definition::Global;
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::stdout;
use crate::protocol::MetricsQuery;
use crate::run::SUCCESS;

/// Prints the figures. Half of them would look like a whole to a collector of files, so a reader that is
/// gone is a failure.
pub(crate) fn run(global: &Global) -> Result<u8, Failed> {
    let found = connect::client(global)?.metrics(&MetricsQuery {}).map_err(connect::failed)?;
    stdout::print_or_fail(&found.text)?;
    Ok(SUCCESS)
}
