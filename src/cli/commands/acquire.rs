//! `canal acquire`: takes a lock for another process, or as a lease.
//!
//! The lock is provisional until canal has printed and confirmed it. If canal ends before that, the
//! daemon withdraws the grant, or the coordinator releases it at all nodes.

use std::os::unix::process::parent_id;

use itertools::Itertools as _;
use serde::Serialize;

use crate::cli::arguments::request::RequestArgs;
use crate::cli::lock_source::{self, Asking, Source, end_coordinator};
use crate::cli::owner::Owner;
use crate::cli::wording::print_refusal;
use crate::cli::{AcquireArgs, Failed, Global, Result, millis, stated, stderr, stdout, wrong};
use crate::client::{self, ClientError};
use crate::nodes::Require;
use crate::protocol::{ErrorName, Grant, GrantedKey, LeaseAsked, OWNER_GONE, RequestTag, SizeNote};
use crate::run::nodes::{ChildEnd, Purpose, Start, Wish};
use crate::run::{OwnCode, Taken};
use crate::sys::clock::boottime_ms;
use crate::sys::deadline_page::Reader;
use crate::sys::pidfd::Pidfd;
use crate::sys::process;

/// The `--json` output of a lease over nodes.
#[derive(Debug, Serialize)]
struct LeaseOverNodes<'a> {
    keys: Vec<GrantedKey>,
    token: Option<u64>,
    handle: &'a str,
    ttl_ms: u64,
    /// How many nodes must hold it.
    need: usize,
    nodes: Vec<AskedNode<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<SizeNote>,
}

/// A node that was asked.
#[derive(Debug, Serialize)]
struct AskedNode<'a> {
    name: &'a str,
    held: bool,
}

pub(crate) fn run(args: &AcquireArgs, global: &Global) -> Result {
    if args.asked.wait.conflict_exit_code == Some(0) {
        return Err(Failed::new("-E 0 would let the script continue without the lock").hint(
            "with `canal acquire`, choose another code and test for it; only `canal run -E \
                   0` skips its command",
        ));
    }
    // This precedes the search for the owner, so that errors in the options come first.
    let lock = args.asked.lock.with_operand(args.key.as_ref())?;
    let asked = RequestArgs { lock, ..args.asked.clone() };
    let mut request = lock_source::request("acquire", &asked, &args.nodes)?;
    request.on_lost = args.on_lost.unwrap_or_default();
    if args.nodes.is_given() && args.ttl.is_none() {
        let why = "--on needs --ttl, because other machines cannot see when a process on this \
                   machine ends";
        return Err(wrong("acquire", why).hint(
            "hold it while a command runs with `canal run --on`, or renew a lease with `canal \
             renew --while PID`",
        ));
    }
    let source = Source::of(global, &args.nodes, args.ttl, &request, Purpose::Lease)?;
    let owner = match args.ttl {
        Some(ttl) => {
            // The command line of the script, because this process ends immediately.
            request.command = process::command_line(parent_id()).unwrap_or_default();
            if source.nodes.is_none() {
                let handle = client::handle()?;
                request.lease = Some(LeaseAsked { handle, ttl_ms: millis(ttl) });
                // A lease outlives the session and frame in which it is requested.
                (request.session, request.frame) = (None, None);
            }
            None
        }
        None => {
            let owner = Owner::find(args.pid)?;
            request.command = process::command_line(owner.pid).unwrap_or_default();
            let socket = &source.target.place.socket;
            request.under = asked.session.enclosing_leases().at_socket(socket);
            Some(owner)
        }
    };
    let owner_fd = owner.as_ref().map(|owner| &owner.pidfd);
    let asking = Asking { request: &request, owner: owner_fd, wait: &asked.wait };
    match source.take(&asking, None, None) {
        Ok(Taken::FromDaemon { mut client, mut acquired }) => {
            acquired.grant.handle = request.lease.map(|lease| lease.handle);
            let Grant { token, keys, handle, .. } = &acquired.grant;
            if args.json {
                stdout::print_or_fail(&stdout::json(&acquired.grant)?)?;
            } else if let Some(handle) = handle {
                let text = variables(&handle.reveal(), Some(*token), &[], keys);
                stdout::print_or_fail(&text)?;
            }
            let confirmed = client.confirm(&RequestTag { tag: request.tag });
            let has_ended = || owner_fd.is_some_and(Pidfd::has_ended);
            confirmed.map_err(|error| unconfirmed(error, has_ended))?;
            check_kept(acquired.page.as_ref(), "the lock was lost before canal could report it")?;
        }
        Ok(Taken::FromNodes { start, end, coordinator }) => {
            let told = tell_lease(&start, &end, args.json);
            let wish = if told.is_ok() { Wish::Leave } else { Wish::Stop };
            end_coordinator(coordinator, wish);
            told?;
        }
        Err(Failed { failure: Some(failure), .. }) if failure.name == ErrorName::Refused => {
            return Err(print_refusal::report(&failure, &asked.wait, args.json));
        }
        Err(failed) => return Err(failed),
    }
    match owner {
        Some(owner) => {
            let say = if owner.by_default { stderr::note } else { stderr::detail };
            say(&format!("held for {}", owner.shown()));
        }
        None => stderr::detail(&format!(
            "took a lease of {}; renew it with `canal renew`, release it with `canal release \
             --handle`",
            stated(args.ttl.unwrap_or_default())
        )),
    }
    Ok(())
}

/// Prints a lease over nodes for its owner, unless it is already lost.
fn tell_lease(start: &Start, end: &ChildEnd, json: bool) -> Result {
    let request = end.request();
    let handle = end.handle(start).reveal();
    let mut keys: Vec<GrantedKey> = start.grant.iter().flat_map(|it| it.keys.clone()).collect();
    let mut names = vec![("CANAL_NODES", start.nodes.join(","))];
    if request.require == Require::Any {
        names.push(("CANAL_NODE", start.nodes.join(",")));
    } else {
        // Slots of several nodes do not form one list.
        keys.iter_mut().for_each(|key| key.slots.clear());
    }
    let (token, need, ttl_ms) = (start.token, start.need, request.ttl_ms);
    let mut text = variables(&handle, token, &names, &keys);
    if json {
        let nodes = start.parts.iter().filter_map(|part| {
            let node = request.nodes.iter().find(|node| node.address == part.address)?;
            Some(AskedNode { name: &node.name, held: part.held })
        });
        let (handle, nodes) = (&*handle, nodes.collect());
        let notes = request.asked.items.iter().filter_map(SizeNote::of_text).collect();
        text = stdout::json(&LeaseOverNodes { keys, token, handle, ttl_ms, need, nodes, notes })?;
    }
    check_kept(Some(&end.page), "the lease was lost before its handle could be printed")?;
    stdout::print_or_fail(&text)
}

/// Checks that a lock that can be lost is not lost yet. A process that was stopped after the grant
/// notices the loss here.
///
/// # Errors
/// It is lost.
fn check_kept(page: Option<&Reader>, message: &str) -> Result {
    if page.is_some_and(|page| page.state().is_over(boottime_ms())) {
        return Err(Failed::with_code(OwnCode::LockLost.number(), message));
    }
    Ok(())
}

/// The error for a grant that was not confirmed. If its owner has ended in the meantime, this is
/// the same error as for an owner that ended earlier.
fn unconfirmed(error: ClientError, has_ended: impl FnOnce() -> bool) -> Failed {
    match error {
        ClientError::Failure(it) if it.name == ErrorName::UnknownTag && has_ended() => {
            Failed::new(OWNER_GONE)
        }
        error => error.into(),
    }
}

/// The variables that later steps need, as lines for a shell and for the environment files of CI
/// services.
fn variables(
    handle: &str,
    token: Option<u64>,
    names: &[(&str, String)],
    keys: &[GrantedKey],
) -> String {
    let mut all = vec![("CANAL_HANDLE", handle.to_owned())];
    all.extend(token.map(|token| ("CANAL_TOKEN", token.to_string())));
    // An address may contain a space, and would then be two words.
    all.extend(names.iter().filter(|(_, it)| !it.contains(char::is_whitespace)).cloned());
    let slots = keys.iter().flat_map(|key| &key.slots).map(|slot| slot.slot).join(",");
    all.extend((!slots.is_empty()).then_some(("CANAL_SLOTS", slots)));
    all.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Failure;

    #[test]
    fn an_owner_that_ends_around_the_grant_gets_one_message() {
        let taken_back =
            || ClientError::Failure(Failure::new(ErrorName::UnknownTag, "taken back before"));
        assert_eq!(unconfirmed(taken_back(), || true).message, OWNER_GONE);
        assert_eq!(unconfirmed(taken_back(), || false).message, "taken back before");
        let other = ClientError::Silent { pid: 7, state: 'S' };
        assert_ne!(unconfirmed(other, || true).message, OWNER_GONE);
    }
}
