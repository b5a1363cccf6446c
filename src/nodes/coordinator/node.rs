//! What a coordinator knows of one node.

use super::link::{Link, Trouble};
use crate::core::Token;
use crate::nodes::{Asking, Millis, Refusal};

/// What a coordinator knows of one node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) link: Link,
    pub(super) hold: Hold,
    /// The number of the lease that it was asked for last; 0 if it was not asked yet.
    pub(super) lease: u32,
    /// How it was asked under that number, if the request may still wait there or have a grant that is
    /// not to be confirmed yet.
    pub(super) asked: Option<Asking>,
    /// Whether it was asked as a spare in this round, so that it knows the list of the request.
    pub(super) is_announced: bool,
    /// When the last call was sent whose answer says that the lease is firm.
    pub(super) sent: Option<Millis>,
    /// For how long the node said that it keeps the lease: another client may have renewed it with
    /// another TTL than that of the plan.
    pub(super) ttl_ms: Option<Millis>,
    /// Since when a renewal is unanswered.
    pub(super) renewing: Option<Millis>,
    /// When the next renewal is due.
    pub(super) renew_at: Millis,
    /// It is not asked before.
    pub(super) ask_at: Millis,
    /// It grants nothing over nodes before.
    pub(super) grants_from: Millis,
    /// Why it did not grant what it was asked in this round.
    pub(super) refused: Option<(Refusal, String)>,
    /// Why it never will.
    pub(super) unfit: Option<String>,
    /// How often it did not confirm what it had granted, while no command ran.
    pub(super) unconfirmed: u32,
}

/// What a node holds for this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Nothing, or what ends with a closed connection: see `asked`.
    Nothing,
    /// Perhaps a firm lease.
    Unknown,
    /// It was asked, and has not answered.
    Asked { since: Millis },
    /// The request waits there.
    Queued,
    /// A grant that ends with the connection.
    Collecting { token: Token },
    /// The same; a `ConfirmAt` has not been answered.
    Confirming { since: Millis },
    /// A lease.
    Firm,
    /// A release has not been answered.
    Releasing { since: Millis },
}

impl Node {
    pub(super) fn new(now: Millis) -> Self {
        Self {
            link: Link::new(now),
            hold: Hold::Nothing,
            lease: 0,
            asked: None,
            is_announced: false,
            sent: None,
            ttl_ms: None,
            renewing: None,
            renew_at: 0,
            ask_at: 0,
            grants_from: 0,
            refused: None,
            unfit: None,
            unconfirmed: 0,
        }
    }

    /// Whether it was asked as a spare, and is not to be confirmed yet.
    pub(super) fn is_spare(&self) -> bool {
        self.asked.is_some_and(|asked| asked.spare)
    }

    /// Whether a grant of this node may become, or is, part of the lock.
    pub(super) fn is_held(&self) -> bool {
        match self.hold {
            Hold::Collecting { .. } => !self.is_spare(),
            Hold::Confirming { .. } | Hold::Firm => true,
            _ => false,
        }
    }

    /// Why it cannot be used at present, for people.
    pub(super) fn obstacle(&self) -> String {
        let trouble = self.link.trouble().map(|trouble| trouble.why.clone());
        let known = self.unfit.clone().or(trouble);
        known.unwrap_or_else(|| match self.link.is_open() {
            true => "it is new or has lost its state: it grants nothing over nodes yet".to_owned(),
            false => "it does not answer".to_owned(),
        })
    }

    pub(super) fn reached(&mut self) {
        self.link.reached();
        self.renew_at = 0;
    }

    pub(super) fn away(
        &mut self,
        now: Millis,
        trouble: Trouble,
        longest_ms: Option<Millis>,
        is_local: bool,
    ) {
        self.disconnected(is_local);
        self.link.fail(now, trouble, longest_ms);
    }

    /// A call has not been answered since `since`.
    pub(super) fn suspect(&mut self, now: Millis, since: Millis, is_local: bool) {
        self.disconnected(is_local);
        self.link.suspect(now, since);
    }

    /// What is left when the connection has ended. The hold of a process does not end with it.
    fn disconnected(&mut self, is_local: bool) {
        self.renewing = None;
        if is_local && matches!(self.hold, Hold::Collecting { .. }) {
            self.asked = None;
        }
        // The node knows the list for as long as the connection is open.
        self.is_announced = false;
        self.ask_at = 0;
        self.hold = match self.hold {
            Hold::Collecting { .. } if is_local => Hold::Unknown,
            Hold::Asked { .. } | Hold::Queued | Hold::Collecting { .. } => Hold::Nothing,
            Hold::Releasing { .. } if self.asked.is_some() => Hold::Nothing,
            Hold::Confirming { .. } | Hold::Releasing { .. } => Hold::Unknown,
            other => other,
        };
    }

    /// The node holds nothing.
    pub(super) fn gone(&mut self) {
        self.hold = Hold::Nothing;
        self.asked = None;
        self.sent = None;
        self.ttl_ms = None;
        self.renewing = None;
    }
}
