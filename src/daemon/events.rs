//! Of what the kernel reports events, by the numbers that they carry.

use super::conn::ConnId;

/// Marks the number of a [`Source`] among those of connections.
const SOURCE: u64 = 1 << 62;

/// What there is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Somebody wants to be accepted.
    Listener,
    /// Something in our directory was removed.
    Home,
    /// A process that owns something may have ended. All are looked at in each turn.
    Owners,
    /// A signal came.
    Signals,
    /// The alarm went off.
    Alarm,
    /// The engine said something.
    Engine,
}

const SOURCES: [Source; 6] = [
    Source::Listener,
    Source::Home,
    Source::Owners,
    Source::Signals,
    Source::Alarm,
    Source::Engine,
];

/// Of what an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Connection(ConnId),
    Source(Source),
}

impl Of {
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Connection(id) => id.0 as u64,
            Self::Source(source) => SOURCE | source as u64,
        }
    }

    /// What has this number; `None` if nothing has.
    pub(super) fn from_number(number: u64) -> Option<Self> {
        let index = usize::try_from(number & !SOURCE).ok()?;
        if number & SOURCE != 0 {
            return SOURCES.get(index).copied().map(Self::Source);
        }
        Some(Self::Connection(ConnId(index)))
    }
}

/// What was reported and not seen to yet.
#[derive(Debug, Default)]
pub(super) struct Reported([bool; SOURCES.len()]);

impl Reported {
    pub(super) fn note(&mut self, source: Source) {
        self.0[source as usize] = true;
    }

    pub(super) fn has(&self, source: Source) -> bool {
        self.0[source as usize]
    }

    /// Whether it was reported; it is not any more.
    pub(super) fn take(&mut self, source: Source) -> bool {
        std::mem::take(&mut self.0[source as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_number_of_its_own() {
        let connections = [0, 1, 1 << 40].map(|index| Of::Connection(ConnId(index)));
        let all = connections.into_iter().chain(SOURCES.map(Of::Source));
        for of in all {
            assert_eq!(Of::from_number(of.number()), Some(of));
        }
        assert_eq!(Of::from_number(SOURCE | SOURCES.len() as u64), None);
    }

    #[test]
    fn what_was_reported_is_taken_once() {
        let mut reported = Reported::default();
        reported.note(Source::Alarm);
        assert!(reported.has(Source::Alarm) && !reported.has(Source::Home));
        assert!(reported.take(Source::Alarm));
        assert!(!reported.take(Source::Alarm));
    }
}
