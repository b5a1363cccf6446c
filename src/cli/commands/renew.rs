//! `canal renew`: let a lease live on.

use crate::cli::arguments::definition::{Global, RenewArgs};
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::wording::lease_lost;
use crate::cli::wording::time::Now;
use crate::cli::wording::usage_error::wrong;
use crate::client::ClientError;
use crate::protocol::{ErrorName, Renew, Renewed};
use crate::run::SUCCESS;

pub(crate) fn run(args: &RenewArgs, global: &Global, verbosity: Verbosity) -> Result<u8, Failed> {
    let Some(handle) = args.which.read()? else {
        return Err(wrong("renew", "which lease? give --handle, or set CANAL_HANDLE"));
    };
    let note = args.note.of_renewal()?;
    match connect::client(global)?.renew(&Renew { handle, note }) {
        Ok(renewed) => {
            if args.json {
                stdout::print(&stdout::json(&renewed)?)?;
            }
            verbosity.detail(&message(&renewed, &Now::here()));
            Ok(SUCCESS)
        }
        Err(ClientError::Failure(failure)) if failure.name == ErrorName::LeaseLost => {
            Err(lease_lost::explain(&failure, args.json, verbosity)?)
        }
        Err(error) => Err(connect::failed(error)),
    }
}

/// `renewed db until 14:06:23, token 77`.
fn message(renewed: &Renewed, now: &Now) -> String {
    let until = renewed.lease.expires.as_deref().map(|at| format!(" until {}", now.clock(at)));
    let keys = renewed.keys.join(", ");
    format!("renewed {keys}{}, token {}", until.unwrap_or_default(), renewed.token)
}
