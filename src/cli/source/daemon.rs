//! Takes a lock from a daemon.

use super::request::{Asking, NotAcquired, Witness};
use crate::cli::arguments::session;
use crate::cli::arguments::wait::Readers;
use crate::cli::node_list::within;
use crate::cli::progress::Waiting;
use crate::cli::wording::on_nodes::unread;
use crate::cli::wording::participant;
use crate::cli::{Failed, Target, Verbosity};
use crate::protocol::{ErrorName, Failure, Grant, GrantedKey, Mode, SizeNote};
use crate::run::Taken;

/// Sends the request and shows its progress until the daemon grants or refuses it.
pub(super) fn take(
    target: &Target,
    asking: &Asking<'_>,
    witness: &mut dyn Witness,
) -> Result<Taken, NotAcquired> {
    let Asking { request, owner, progress: choice, readers, verbosity } = *asking;
    let mut client = target.connect_for(request.wait_ms)?;
    if readers == Readers::Needed {
        client.give_up_unread();
    }
    // Most requests do not wait, so the display is allocated only when needed.
    let mut waiting: Option<Box<Waiting>> = None;
    let mut within = within(target, request);
    let result = client.acquire(request, owner, &mut |progress| {
        if let Some(progress) = progress {
            witness.waits(progress).map_err(given_up)?;
        }
        let begin = || Box::new(Waiting::new(verbosity, choice, &request.items));
        let waiting = waiting.get_or_insert_with(begin);
        let again = within.turn(waiting.update(progress));
        if let Some(nodes) = within.unread() {
            waiting.note(&unread(&nodes));
        }
        again
    });
    if let Some(mut waiting) = waiting {
        waiting.end();
    }
    let acquired = result.map_err(NotAcquired::from).inspect_err(|why| {
        if let NotAcquired::Refused(failure) = why {
            size_notes(failure.notes(), verbosity);
        }
    })?;
    size_notes(&acquired.grant.notes, verbosity);
    if verbosity >= Verbosity::Verbose {
        verbosity.detail(&granted(&acquired.grant));
    }
    if let Some(message) = session::not_believed(request, &acquired.grant) {
        verbosity.detail(&message);
    }
    if let Some(message) = session::not_new(request, &acquired.grant) {
        verbosity.note(&message);
    }
    witness.granted(&acquired.grant)?;
    Ok(Taken::FromDaemon { client, acquired })
}

/// The failure that gives up a request.
fn given_up(failed: Failed) -> Box<Failure> {
    let failure = Failure::new(ErrorName::Fault, failed.message);
    Box::new(match failed.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    })
}

/// Prints where the size in the request differs from the size that others use. Each difference
/// appears only once for each daemon and user, because cron mails every line.
fn size_notes(notes: &[SizeNote], verbosity: Verbosity) {
    for note in notes.iter().filter(|note| note.first) {
        verbosity.note(&note.message);
    }
}

/// `acquired db slot 4 (5 held), conf to read, token 77`.
fn granted(grant: &Grant) -> String {
    format!("acquired {}, token {}", keys_granted(&grant.keys), grant.token)
}

/// `db slot 4 (5 held), conf to read`.
pub(crate) fn keys_granted(keys: &[GrantedKey]) -> String {
    let keys = keys.iter().map(|key| match key.mode {
        Mode::Counted => {
            let slots: Vec<_> = key.slots.iter().map(|slot| slot.slot).collect();
            format!("{} slot {} ({} held)", key.key, participant::slots(&slots), key.acquired)
        }
        Mode::Read => format!("{} to read", key.key),
        Mode::Write => format!("{} to write", key.key),
    });
    keys.collect::<Vec<_>>().join(", ")
}
