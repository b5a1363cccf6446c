//! The sources of kernel events, and the numbers that their events carry.

use slotmap::{Key, KeyData};

use crate::calls::conn_id::ConnId;

/// The smallest number of a connection. The upper half counts how often the connection's slot was
/// used, from 1 on.
const CONNECTIONS: u64 = 1 << 32;

/// A source that exists once. The daemon handles it only when the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client wants to connect.
    Listener,
    /// Something in the daemon's directory was removed.
    RuntimeDir,
    /// A signal arrived.
    Signals,
    /// The boottime timer expired.
    BoottimeTimer,
    /// The watcher has ended.
    Watcher,
}

const SOURCES: [Source; 5] =
    [Source::Listener, Source::RuntimeDir, Source::Signals, Source::BoottimeTimer, Source::Watcher];

/// The number of the sources that only wake the daemon, which checks them in each turn anyway.
const WAKES: u64 = SOURCES.len() as u64;

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Connection(ConnId),
    Source(Source),
    /// A process has ended, or the engine has an answer.
    Wakes,
}

impl Of {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Connection(id) => id.data().as_ffi(),
            Self::Source(source) => source as u64,
            Self::Wakes => WAKES,
        }
    }

    /// The subject with this number; `None` if there is none.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        match number {
            CONNECTIONS.. => Some(Self::Connection(KeyData::from_ffi(number).into())),
            WAKES => Some(Self::Wakes),
            _ => SOURCES.get(usize::try_from(number).ok()?).copied().map(Self::Source),
        }
    }
}

/// The sources that were reported and not handled yet.
#[derive(Debug, Default)]
pub(crate) struct Reported([bool; SOURCES.len()]);

impl Reported {
    pub(crate) fn note(&mut self, source: Source) {
        self.0[source as usize] = true;
    }

    pub(crate) fn has(&self, source: Source) -> bool {
        self.0[source as usize]
    }

    /// Whether a source was reported. Clears the report.
    pub(crate) fn take(&mut self, source: Source) -> bool {
        std::mem::take(&mut self.0[source as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_source_has_a_number_of_its_own() {
        let mut map = slotmap::SlotMap::with_key();
        let mut ids: Vec<ConnId> = (0..3).map(|n| map.insert(n)).collect();
        for _ in 0..3 {
            map.remove(*ids.last().unwrap());
            ids.push(map.insert(0));
        }
        let all: Vec<Of> = ids.into_iter().map(Of::Connection).collect();
        let all: Vec<Of> =
            all.into_iter().chain(SOURCES.map(Of::Source)).chain([Of::Wakes]).collect();
        let mut numbers = std::collections::BTreeSet::new();
        for of in &all {
            assert_eq!(Of::from_number(of.number()), Some(*of));
            numbers.insert(of.number());
        }
        assert_eq!(numbers.len(), all.len());
        assert_eq!(Of::from_number(WAKES + 1), None);
    }

    #[test]
    fn each_event_is_taken_once() {
        let mut reported = Reported::default();
        reported.note(Source::BoottimeTimer);
        assert!(reported.has(Source::BoottimeTimer) && !reported.has(Source::RuntimeDir));
        assert!(reported.take(Source::BoottimeTimer));
        assert!(!reported.take(Source::BoottimeTimer));
    }
}
