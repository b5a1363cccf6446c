//! Records the tokens that clients of this host received over an engine: a file in the state
//! directory, so that it survives a reboot.
//!
//! After the engine has lost history, this host writes into the log how far its tokens reached, so
//! that no token is used twice.
//!
//! Invariant: a client receives a token only after a bound above it is on disk. Bounds are reserved
//! in blocks, so that this costs one sync per block.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::membership::Memory;
use crate::processes::holder_record::HolderRecord;
use canal_core::Token;
use canal_log::replace_file::{replace, sweep};
use canal_protocol::paths::Place;
use canal_sys::private_dir::is_missing;

/// The file's name.
const NAME: &str = "tokens";
/// How many tokens are reserved at a time.
const RESERVED: u64 = 1_000;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Noted {
    /// The engine's address, without user, password and parameters.
    engine: String,
    /// The identity of the history of the engine's log.
    epoch: Option<u128>,
    /// The largest token that a client had received when this was written.
    told: Token,
    /// Only smaller tokens may have reached a client.
    told_below: Token,
}

/// The file, and the largest token sent so far.
#[derive(Debug)]
pub(crate) struct SentTokens {
    dir: PathBuf,
    /// The content of the file, with the largest token since.
    noted: Noted,
}

impl SentTokens {
    /// Reads the file for this engine. If the file is for another engine, its tokens only give the
    /// lower bound for new tokens: they are not part of this log.
    ///
    /// # Errors
    /// The file cannot be read, or its content is invalid.
    pub(crate) fn open(place: &Place, engine: &str) -> io::Result<Self> {
        let dir = place.state_dir().to_owned();
        let mut found = Noted::default();
        // The usual directory may have been unavailable to the previous daemon.
        for dir in [&dir, &place.dir] {
            sweep(dir, NAME);
            let noted: Noted = match fs::read(dir.join(NAME)) {
                Ok(bytes) => serde_json::from_slice(&bytes)?,
                Err(error) if is_missing(&error) => continue,
                Err(error) => return Err(error),
            };
            if noted.told_below > found.told_below {
                found = noted;
            }
        }
        if found.engine != engine {
            let engine = engine.to_owned();
            found = Noted { engine, epoch: None, told: Token(0), ..found };
        }
        Ok(Self { dir, noted: found })
    }

    /// The facts that the member needs about the grants that earlier daemons of this place sent.
    pub(super) fn memory(&self, record: &HolderRecord) -> Memory {
        let (epoch, recorded) = (self.noted.epoch, record.content().largest);
        let marks = record.each().values().filter_map(|holder| holder.mark);
        Memory {
            epoch,
            mark: marks.max_by_key(|mark| mark.position),
            // Tokens of another engine are not part of this log, but they must not be used again.
            told: if epoch.is_some() { self.noted.told.max(recorded) } else { Token(0) },
            bound: Token(self.noted.told_below.0.saturating_sub(1)).max(recorded),
            lost: false,
        }
    }

    /// Records a token before a client receives it. `epoch` is the history of the log.
    ///
    /// # Errors
    /// The token is not recorded, so no client must receive it.
    pub(crate) fn tell(&mut self, token: Token, epoch: Option<u128>) -> io::Result<()> {
        if token >= self.noted.told_below || epoch != self.noted.epoch {
            let told_below = self.noted.told_below.max(Token(token.0.saturating_add(RESERVED)));
            self.write(Noted { epoch, told_below, ..self.noted.clone() })?;
        }
        self.noted.told = self.noted.told.max(token);
        Ok(())
    }

    /// Records the exact bound, because this daemon sends no further tokens.
    ///
    /// # Errors
    /// The file cannot be written. The reserved block stays reserved.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        let told_below = Token(self.noted.told.0.saturating_add(1));
        if self.noted.told == Token(0) || told_below >= self.noted.told_below {
            return Ok(());
        }
        self.write(Noted { told_below, ..self.noted.clone() })
    }

    fn write(&mut self, noted: Noted) -> io::Result<()> {
        let line = serde_json::to_string(&noted)? + "\n";
        replace(&self.dir, NAME, line.as_bytes())?;
        self.noted = noted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use canal_sys::process::Origin;

    fn place(dir: &Path) -> Place {
        Place::find(Some(&dir.join("canal.sock")), 0).unwrap()
    }

    fn open(dir: &Path) -> SentTokens {
        SentTokens::open(&place(dir), "etcd://one").unwrap()
    }

    fn memory_of(tokens: &SentTokens) -> Memory {
        let dir = tempfile::tempdir().unwrap();
        tokens.memory(&HolderRecord::open(dir.path(), Origin::read().unwrap(), false).unwrap())
    }

    #[test]
    fn a_crash_counts_the_whole_block_as_told_and_a_clean_end_only_what_was_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut tokens = open(dir.path());
        assert_eq!(memory_of(&tokens), Memory::default());
        for token in [7, 8, 600] {
            tokens.tell(Token(token), Some(5)).unwrap();
        }
        let memory = memory_of(&open(dir.path()));
        assert_eq!((memory.told, memory.bound), (Token(0), Token(1_006)));
        assert_eq!(memory.epoch, Some(5));
        tokens.tell(Token(1_007), Some(5)).unwrap();
        let memory = memory_of(&open(dir.path()));
        assert_eq!((memory.told, memory.bound), (Token(600), Token(2_006)));
        tokens.close().unwrap();
        let memory = memory_of(&open(dir.path()));
        assert_eq!((memory.told, memory.bound), (Token(1_007), Token(1_007)));
    }

    #[test]
    fn each_block_of_tokens_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut tokens = open(dir.path());
        tokens.tell(Token(1), Some(5)).unwrap();
        fs::remove_file(dir.path().join(NAME)).unwrap();
        for token in 2..=RESERVED {
            tokens.tell(Token(token), Some(5)).unwrap();
        }
        assert!(!dir.path().join(NAME).exists());
        tokens.tell(Token(RESERVED + 1), Some(5)).unwrap();
        assert!(dir.path().join(NAME).exists());
    }

    #[test]
    fn tokens_told_over_another_engine_are_only_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).tell(Token(7), Some(5)).unwrap();
        let memory = memory_of(&SentTokens::open(&place(dir.path()), "etcd://two").unwrap());
        assert_eq!((memory.epoch, memory.told, memory.bound), (None, Token(0), Token(1_006)));
    }

    #[test]
    fn an_empty_file_of_told_tokens_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).tell(Token(7), Some(5)).unwrap();
        fs::write(dir.path().join(NAME), "").unwrap();
        SentTokens::open(&place(dir.path()), "etcd://one").unwrap_err();
    }
}
