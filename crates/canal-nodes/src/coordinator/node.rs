//! The coordinator's knowledge of one node.

use super::link::{Link, Trouble};
use crate::{Asking, Millis, Refusal};
use canal_core::Token;

/// The coordinator's knowledge of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) link: Link,
    pub(super) hold: Hold,
    /// The number of the lease in the last request to it; 0 before the first.
    pub(super) lease: u32,
    /// How it was asked under that number, if the request may still wait there or have a grant that
    /// is not yet to be confirmed.
    pub(super) asked: Option<Asking>,
    /// Whether it was asked for a spare in this round, and so knows the list of the request.
    pub(super) is_announced: bool,
    /// When the coordinator sent the last call whose answer shows that the lease is firm.
    pub(super) sent: Option<Millis>,
    /// How long the node keeps the lease, according to its answer: another client may have renewed
    /// it with a TTL other than the plan's.
    pub(super) ttl_ms: Option<Millis>,
    /// The time since which a renewal is unanswered.
    pub(super) renewing: Option<Millis>,
    /// When the next renewal is due.
    pub(super) renew_at: Millis,
    /// The earliest time to ask it.
    pub(super) ask_at: Millis,
    /// The time from which it grants anything over nodes.
    pub(super) grants_from: Millis,
    /// Why it refused the request in this round.
    pub(super) refused: Option<(Refusal, String)>,
    /// Why it will never grant the request.
    pub(super) unfit: Option<String>,
    /// How many times it failed to confirm its own grant while no command ran.
    pub(super) unconfirmed: u32,
}

/// The state of this request at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// It holds nothing, or something that ends with a closed connection: see `asked`.
    #[default]
    Nothing,
    /// It may hold a firm lease.
    Unknown,
    /// It was asked, and has not answered.
    Asked { since: Millis },
    /// The request waits there.
    Queued,
    /// It has a grant that ends with the connection.
    Collecting { token: Token },
    /// It has such a grant, and has not answered a `ConfirmAt`.
    Confirming { since: Millis },
    /// It has a firm lease.
    Firm,
    /// It has not answered a release.
    Releasing { since: Millis },
}

impl Node {
    pub(super) fn new(now: Millis) -> Self {
        Self { link: Link::new(now), ..Self::default() }
    }

    /// Whether it was asked for a spare, and is not yet asked to confirm.
    pub(super) fn is_spare(&self) -> bool {
        self.asked.is_some_and(|asked| asked.spare)
    }

    /// Whether a grant of this node is, or may become, part of the lock.
    pub(super) fn is_held(&self) -> bool {
        match self.hold {
            Hold::Collecting { .. } => !self.is_spare(),
            Hold::Confirming { .. } | Hold::Firm => true,
            _ => false,
        }
    }

    /// Why it cannot be used at present, as text for the user.
    pub(super) fn obstacle(&self) -> String {
        let trouble = self.link.trouble().map(|trouble| trouble.why.clone());
        let known = self.unfit.clone().or(trouble);
        known.unwrap_or_else(|| match self.link.is_open() {
            true => {
                "it is new or has lost its state, and does not grant node leases yet".to_owned()
            }
            false => "it does not answer".to_owned(),
        })
    }

    pub(super) fn reached(&mut self) {
        self.link.reached();
        self.renew_at = 0;
    }

    pub(super) fn away(&mut self, now: Millis, trouble: Trouble, longest_ms: Option<Millis>) {
        self.disconnected();
        self.link.fail(now, trouble, longest_ms);
    }

    /// Records that a call has been unanswered since `since`.
    pub(super) fn suspect(&mut self, now: Millis, since: Millis) {
        self.disconnected();
        self.link.suspect(now, since);
    }

    /// Records that the connection has ended.
    fn disconnected(&mut self) {
        self.renewing = None;
        // The node knows the list only while the connection is open.
        self.is_announced = false;
        self.ask_at = 0;
        self.hold = match self.hold {
            Hold::Asked { .. } | Hold::Queued | Hold::Collecting { .. } => Hold::Nothing,
            Hold::Releasing { .. } if self.asked.is_some() => Hold::Nothing,
            Hold::Confirming { .. } | Hold::Releasing { .. } => Hold::Unknown,
            other => other,
        };
    }

    /// Records that the node holds nothing.
    pub(super) fn gone(&mut self) {
        self.hold = Hold::Nothing;
        self.asked = None;
        self.sent = None;
        self.ttl_ms = None;
        self.renewing = None;
    }
}
