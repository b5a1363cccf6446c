//! Tracks how far a session has read the log.

/// How far the log was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The last batch that was read.
    pub after: u64,
    /// The last batch that is known to exist.
    pub head: u64,
}

impl Cursor {
    pub(crate) fn at(after: u64) -> Self {
        Self { after, head: after }
    }

    /// Records that the log reaches up to `head`.
    pub(crate) fn learn_head(&mut self, head: u64) {
        self.head = self.head.max(head);
    }

    pub(crate) fn next_is(&self, position: u64) -> bool {
        self.after.checked_add(1) == Some(position)
    }

    pub(crate) fn read_to(&mut self, position: u64) {
        self.after = position;
        self.head = self.head.max(position);
    }

    /// Whether there is more to read.
    pub(crate) fn is_behind(&self) -> bool {
        self.head > self.after
    }
}
