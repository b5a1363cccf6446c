//! `canal lookout`: looks for deadlocks on behalf of a program that uses the library.

use crate::cli::arguments::definition::Global;
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::node_list::around;
use crate::run::nodes::Lookout;
use crate::run::{SUCCESS, environment};

pub(crate) fn run(global: &Global) -> Result<u8, Failed> {
    let target = Target::of(global)?;
    let failed = |error| Failed::new(format!("cannot search for deadlocks: {error}"));
    if let Some(run) = environment::run() {
        Lookout::serve(&around(&target)?, run).map_err(failed)?;
    }
    Ok(SUCCESS)
}
