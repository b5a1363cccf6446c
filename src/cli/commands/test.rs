//! `canal test`: checks whether locks are free, without taking them.

use serde::Serialize;

use crate::cli::arguments::definition::{Global, TestArgs};
use crate::cli::arguments::wait::WaitArgs;
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::output::stdout;
use crate::cli::source::keys_granted;
use crate::cli::wording::not_acquired;
use crate::client::ClientError;
use crate::protocol::{
    ErrorName, Failure, GrantedKey, HolderInfo, SizeNote, WireItem, WouldAcquire,
};
use crate::run::SUCCESS;

/// The `--json` output if all locks are free.
#[derive(Debug, Serialize)]
struct Free<'a> {
    free: bool,
    keys: &'a [GrantedKey],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<SizeNote>,
}

/// The `--json` output if at least one lock is not free.
#[derive(Debug, Serialize)]
struct Busy<'a> {
    free: bool,
    refused: &'a str,
    message: &'a str,
    holders: &'a [HolderInfo],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<SizeNote>,
}

pub(crate) fn run(args: &TestArgs, global: &Global) -> Result<u8, Failed> {
    let items = args.lock().items()?;
    let frame = args.session.enclosing().frame;
    let target = Target::of(global)?;
    let verbosity = target.verbosity;
    let under = args.session.enclosing_leases().at_socket(&target.place.socket);
    let asked = WouldAcquire { items, priority: 0, frame, under };
    match target.connect()?.would_acquire(&asked) {
        Ok(grant) => {
            if args.json {
                let notes = notes(&asked.items);
                stdout::print_json(&Free { free: true, keys: &grant.keys, notes })?;
            }
            verbosity.detail(&format!("free: {}", keys_granted(&grant.keys)));
            Ok(SUCCESS)
        }
        Err(ClientError::Failure(failure)) if failure.name == ErrorName::Refused => {
            if args.json {
                stdout::print_json(&busy(&failure, &asked.items))?;
            }
            Err(not_acquired::explain(&failure, &WaitArgs::default(), verbosity))
        }
        Err(error) => Err(error.into()),
    }
}

fn busy<'a>(failure: &'a Failure, asked: &[WireItem]) -> Busy<'a> {
    let refused = failure.reason.as_deref().unwrap_or("full");
    let (message, holders) = (&failure.message, &failure.holders);
    Busy { free: false, refused, message, holders, notes: notes(asked) }
}

/// How canal read the keys.
fn notes(asked: &[WireItem]) -> Vec<SizeNote> {
    asked.iter().filter_map(SizeNote::of_text).collect()
}
