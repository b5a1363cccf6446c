//! `canal test`: checks whether locks are free, without taking them.

use serde::Serialize;

use crate::cli::arguments::keys_and_sizes::LockArgs;
use crate::cli::arguments::request::WaitArgs;
use crate::cli::lock_source::keys_granted;
use crate::cli::wording::print_refusal::{self, Refused};
use crate::cli::{Global, Result, Target, TestArgs, stderr, stdout};
use crate::client::{ClientError, command_environment};
use crate::protocol::{ErrorName, GrantedKey, SizeNote, WouldAcquire, WouldGrant};

/// The `--json` output of `canal test`: whether all locks are free.
#[derive(Debug, Serialize)]
struct Tested<'a> {
    free: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<&'a [GrantedKey]>,
    #[serde(flatten)]
    refused: Option<Refused<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [SizeNote],
}

pub(crate) fn run(args: &TestArgs, global: &Global) -> Result {
    // In the form of `canal run`.
    let keys = args.lock.keys.iter().chain(&args.operands).cloned().collect();
    let lock = LockArgs { keys, count: args.lock.count.or(args.wanted), ..args.lock.clone() };
    let items = lock.items()?;
    let frame = args.session.enclosing(command_environment::FRAME);
    let target = Target::of(global)?;
    let under = args.session.enclosing_leases().at_socket(&target.place.socket);
    let asked = WouldAcquire { items, priority: 0, frame, under };
    // How canal read the keys.
    let notes: Vec<SizeNote> = asked.items.iter().filter_map(SizeNote::of_text).collect();
    match target.connect()?.would_acquire(&asked) {
        Ok(WouldGrant { keys, .. }) => {
            let tested = Tested { free: true, keys: Some(&keys), refused: None, notes: &notes };
            stdout::json_if(args.json, &tested)?;
            stderr::detail(&format!("free: {}", keys_granted(&keys)));
            Ok(())
        }
        Err(ClientError::Failure(failure)) if failure.name == ErrorName::Refused => {
            let refused = Some(Refused::new(&failure, &notes));
            stdout::json_if(args.json, &Tested { free: false, keys: None, refused, notes: &[] })?;
            Err(print_refusal::explain(&failure, &WaitArgs::default()))
        }
        Err(error) => Err(error.into()),
    }
}
