//! The statement that no daemon has run here before (`--first-start`).
//!
//! Invariant: the statement is refused if any file shows that a daemon has run here before. Such a
//! daemon may have granted a lease that still lives.

use std::io;
use std::path::{Path, PathBuf};

use crate::wording::StartError;
use canal_log::{journal, leases, state};
use canal_protocol::place::{Place, Rule};
use canal_sys::dir::remove_if_there;

/// The file with which `canal setup` makes the statement for the machine's daemon, because the
/// service manager passes that daemon no option.
const NAME: &str = "first-start";

/// The file that states to the daemon of a place, at its next start, that this node has granted
/// nothing before.
///
/// # Errors
/// A daemon has run at this place before.
pub fn statement(place: &Place) -> Result<PathBuf, StartError> {
    check(place, false)?;
    Ok(place.dir.join(NAME))
}

/// Whether `canal setup` has made the statement for this start. Removes the file, because the
/// statement counts for one start only.
///
/// # Errors
/// The file cannot be removed.
pub(crate) fn take_statement(place: &Place) -> io::Result<bool> {
    if place.rule != Rule::Shared {
        return Ok(false);
    }
    remove_if_there(&place.dir.join(NAME))
}

/// Checks that a daemon at this place may start as the first one.
///
/// # Errors
/// A daemon has run here before, or this one works over an engine.
pub(crate) fn check(place: &Place, has_engine: bool) -> Result<(), StartError> {
    if has_engine {
        return Err(StartError {
            what: "--first-start is for nodes, and a daemon with an engine is not a node".into(),
            hint: "leave out --first-start".into(),
        });
    }
    let Some(file) = earlier_life(&[&place.dir, place.state_dir()]) else { return Ok(()) };
    Err(StartError {
        what: format!(
            "--first-start declares that no daemon has run here before, but one has: {} exists",
            file.display()
        ),
        hint: "leave out --first-start: the daemon then waits only if it may have forgotten a \
               lease"
            .into(),
    })
}

/// A file in these directories that a daemon has written.
fn earlier_life(dirs: &[&Path]) -> Option<PathBuf> {
    let files = |dir: &&Path| {
        let journal = [0, 1].map(|index| journal::file_path(dir, index));
        [state::NAME, leases::NAME].map(|name| dir.join(name)).into_iter().chain(journal)
    };
    let mut files = dirs.iter().flat_map(files);
    // A file that cannot be examined may exist.
    files.find(|file| file.symlink_metadata().map_or_else(|error| is_hidden(&error), |_| true))
}

fn is_hidden(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    !matches!(error.kind(), NotFound | NotADirectory)
}
