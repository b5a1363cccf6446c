//! `canal test`: checks whether locks are free, without taking them.

use serde::Serialize;

use crate::cli::arguments::definition::TestArgs;
use crate::cli::arguments::request::WaitArgs;
use crate::cli::source::keys_granted;
use crate::cli::wording::refusal::{self, Refused};
use crate::cli::{Global, Result, Target, stdout};
use crate::client::{ClientError, environment};
use crate::protocol::{ErrorName, GrantedKey, SizeNote, WouldAcquire};

/// The `--json` output if all locks are free.
#[derive(Debug, Serialize)]
struct Free<'a> {
    free: bool,
    keys: &'a [GrantedKey],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [SizeNote],
}

/// The `--json` output if at least one lock is not free.
#[derive(Debug, Serialize)]
struct Busy<'a> {
    free: bool,
    #[serde(flatten)]
    refused: Refused<'a>,
}

pub(crate) fn run(args: &TestArgs, global: &Global) -> Result {
    let items = args.lock().items()?;
    let frame = args.session.enclosing(environment::FRAME);
    let target = Target::of(global)?;
    let verbosity = target.verbosity;
    let under = args.session.enclosing_leases().at_socket(&target.place.socket);
    let asked = WouldAcquire { items, priority: 0, frame, under };
    // How canal read the keys.
    let notes: Vec<SizeNote> = asked.items.iter().filter_map(SizeNote::of_text).collect();
    match target.connect()?.would_acquire(&asked) {
        Ok(grant) => {
            let free = Free { free: true, keys: &grant.keys, notes: &notes };
            stdout::json_if(args.json, &free)?;
            verbosity.detail(&format!("free: {}", keys_granted(&grant.keys)));
            Ok(())
        }
        Err(ClientError::Failure(failure)) if failure.name == ErrorName::Refused => {
            let refused = Refused::new(&failure, &notes);
            stdout::json_if(args.json, &Busy { free: false, refused })?;
            Err(refusal::explain(&failure, &WaitArgs::default(), verbosity))
        }
        Err(error) => Err(error.into()),
    }
}
