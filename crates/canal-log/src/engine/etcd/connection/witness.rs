//! This daemon's knowledge of an etcd from all its connections.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Era;

/// This daemon's knowledge of the etcd from all its connections: the greatest revision that it has
/// seen, and the era at that time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Witness {
    revision: Arc<AtomicI64>,
    era: Arc<Mutex<Option<Era>>>,
}

impl Witness {
    /// Records that the store has reached this revision.
    pub(crate) fn reaches(&self, revision: i64) {
        self.revision.fetch_max(revision, Ordering::Relaxed);
    }

    /// Records that the log names this era at a revision.
    pub(crate) fn settle(&self, revision: i64, era: Option<Era>) {
        self.revision.store(revision, Ordering::Relaxed);
        *self.era.lock().unwrap_or_else(PoisonError::into_inner) = era;
    }

    pub(crate) fn known(&self) -> Known {
        let era = self.era.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Known { revision: self.revision.load(Ordering::Relaxed), era }
    }
}

/// The knowledge in a [`Witness`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub revision: i64,
    pub era: Option<Era>,
}
