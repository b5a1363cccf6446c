//! Requests locks, for both `canal run` and `canal acquire`.

use super::arguments::lock::LockArgs;
use super::arguments::note::NoteArgs;
use super::arguments::session;
use super::arguments::session::SessionArgs;
use super::arguments::wait::{ProgressArg, Readers, SupersedeArg, WaitArgs};
use super::connect::{self, Target};
use super::failed::Failed;
use super::lookout;
use super::output::sanitize::cut;
use super::output::stderr::Verbosity;
use super::progress::Waiting;
use super::wording::over_nodes::unread;
use super::wording::participant;
use super::wording::usage_error::wrong;
use crate::client::{self, Acquired, Client, ClientError};
use crate::protocol::{
    Acquire, ErrorName, Failure, Grant, GrantedKey, Mode, OnLost, Progress, SizeNote, Superseded,
    WireItem,
};
use crate::sys::pidfd::Pidfd;

/// The most columns of a command line that canal sends to the daemon.
const COMMAND_COLUMNS_MAX: usize = 1000;

/// The request that the options describe, under a new tag.
pub(crate) fn request(
    lock: &LockArgs,
    wait: &WaitArgs,
    session: SessionArgs,
    note: &NoteArgs,
    command: &str,
) -> Result<Acquire, Failed> {
    let enclosing = session.enclosing();
    Ok(Acquire {
        tag: client::tag().map_err(connect::failed)?,
        items: lock.items()?,
        wait_ms: wait.wait_ms(),
        priority: wait.priority.unwrap_or(0),
        max_waiting: wait.max_waiting,
        supersede: None,
        group: wait.group.clone(),
        max_run_ms: None,
        command: cut(command, COMMAND_COLUMNS_MAX),
        note: note.of_request()?,
        owner_fd: None,
        with_children: false,
        jobserver: false,
        jobserver_fifo: false,
        session: enclosing.session,
        frame: enclosing.frame,
        lease: None,
        under_run: enclosing.run,
        under: None,
        wrapper: None,
        on_lost: OnLost::Kill,
    })
}

/// The older requests that a request of `canal VERB` supersedes.
pub(crate) fn superseded(
    wait: &WaitArgs,
    verb: &str,
    is_over_nodes: bool,
) -> Result<Option<Superseded>, Failed> {
    if is_over_nodes && (wait.supersede.is_some() || wait.group.is_some()) {
        let why =
            "--supersede and --group do not go with --on: independent nodes have no common queue";
        return Err(wrong(verb, why));
    }
    match wait.supersede {
        Some(SupersedeArg::Running) if wait.wait_ms() == Some(0) => Err(wrong(
            verb,
            "--supersede running waits until the command has ended: it does not go with -n",
        )),
        Some(SupersedeArg::Running) => Ok(Some(Superseded::Running)),
        Some(SupersedeArg::Waiting) => Ok(Some(Superseded::Waiting)),
        None => Ok(None),
    }
}

/// Why a request acquired nothing.
#[derive(Debug)]
pub(crate) enum NotAcquired {
    /// The daemon refused the request: the lock is busy, the wait is over, or there is a deadlock.
    Refused(Failure),
    /// The daemon did not consider the request, because the command needs a supervisor.
    SupervisorRequired(Failure),
    /// canal failed.
    Failed(Failed),
}

/// Learns that a request waits, and that it was granted.
pub(crate) trait Witness {
    /// Called with each progress message. An error withdraws the request.
    fn waits(&mut self, progress: &Progress) -> Result<(), Failed>;

    /// Called with the grant. After an error, the caller must end, which gives the grant back.
    fn granted(&mut self, grant: &Grant) -> Result<(), Failed>;
}

/// Sends the request and shows its progress until the daemon grants or refuses it.
pub(crate) fn obtain(
    target: &Target,
    request: &Acquire,
    owner: Option<&Pidfd>,
    choice: ProgressArg,
    readers: Readers,
    verbosity: Verbosity,
    mut witness: Option<&mut (dyn Witness + '_)>,
) -> Result<(Client, Acquired), NotAcquired> {
    let client = target.connect_for(request.wait_ms, verbosity);
    let mut client = client.map_err(NotAcquired::Failed)?;
    if readers == Readers::Needed {
        client.give_up_unread();
    }
    // Most requests do not wait, so the display is allocated only when needed.
    let mut waiting: Option<Box<Waiting>> = None;
    let mut within = lookout::within(target, request);
    let result = client.acquire(request, owner, &mut |progress| {
        if let (Some(witness), Some(progress)) = (witness.as_deref_mut(), progress) {
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
    match result {
        Ok(acquired) => {
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
            if let Some(witness) = witness {
                witness.granted(&acquired.grant).map_err(NotAcquired::Failed)?;
            }
            Ok((client, acquired))
        }
        Err(error) => {
            let not_acquired = not_acquired(error);
            if let NotAcquired::Refused(failure) = &not_acquired {
                size_notes(failure.notes(), verbosity);
            }
            Err(not_acquired)
        }
    }
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

/// Prints how canal read the keys of a request at nodes. No daemon remembers that for all nodes, so
/// canal prints it for each request.
pub(crate) fn text_notes(items: &[WireItem], verbosity: Verbosity) {
    for note in items.iter().filter_map(SizeNote::of_text) {
        verbosity.note(&note.message);
    }
}

fn not_acquired(error: ClientError) -> NotAcquired {
    match error {
        ClientError::Failure(failure) if failure.name == ErrorName::Refused => {
            NotAcquired::Refused(failure)
        }
        ClientError::Failure(failure) if failure.name == ErrorName::SupervisorRequired => {
            NotAcquired::SupervisorRequired(failure)
        }
        error => NotAcquired::Failed(connect::failed(error)),
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
