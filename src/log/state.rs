//! What must survive a reboot: the floor of the tokens and the stored views.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::core::{StoredView, Token};

/// What must survive a reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// No token at or above this one was ever given out.
    pub reserved_token: Token,
    /// The stored views, by key.
    #[serde(default)]
    pub views: Vec<StoredView>,
}

/// The file `state.json`.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The file in `dir`, which is made (0700) if it is not there, and what is in it, if anything.
    ///
    /// # Errors
    /// Names the file and says what is wrong with it (not ours, not JSON, a later version).
    pub fn open(dir: &Path) -> io::Result<(Self, Option<Durable>)> {
        let _ = dir;
        todo!()
    }

    /// Replaces the file: written beside, synced, renamed, the directory synced.
    pub fn store(&self, durable: &Durable) -> io::Result<()> {
        let _ = (durable, &self.path);
        todo!()
    }
}
