//! The incarnations that claim the label of this host.

use std::collections::BTreeMap;

use crate::core::HostId;
use crate::log::engine::{Identity, Sign};

/// The incarnations with this host's label that had not ended when it registered.
#[derive(Debug, Default)]
pub(in crate::host) struct Others {
    /// Earlier incarnations of this place, which this one may adopt.
    pub(in crate::host) ours: Vec<HostId>,
    /// Incarnations that this host gave up, and those of an earlier boot of this machine. None of
    /// their commands lives once the host is clear.
    pub(in crate::host) dead: Vec<HostId>,
    /// Incarnations of other hosts: their identity, and the first sign seen of them.
    pub(in crate::host) foreign: BTreeMap<HostId, (String, Option<Sign>)>,
    /// The one that this incarnation adopts.
    pub(in crate::host) adopting: Option<HostId>,
}

impl Others {
    pub(in crate::host) fn sort(
        us: &Identity,
        lost: impl Fn(HostId) -> bool,
        all: Vec<(HostId, Identity)>,
    ) -> Self {
        let mut others = Self::default();
        for (host, who) in all {
            if lost(host) || is_of_earlier_boot(&who, us) {
                others.dead.push(host);
            } else if who == *us {
                others.ours.push(host);
            } else {
                others.foreign.insert(host, (described(&who), None));
            }
        }
        others
    }
}

/// Whether nothing of `who` can be left, because the machine has rebooted since.
fn is_of_earlier_boot(who: &Identity, us: &Identity) -> bool {
    let named = !us.machine.is_empty() && !us.boot.is_empty() && !who.boot.is_empty();
    let same_place =
        (&who.label, &who.machine, who.uid, &who.dir) == (&us.label, &us.machine, us.uid, &us.dir);
    named && same_place && who.boot != us.boot
}

/// Describes an identity for people.
pub(in crate::host) fn described(who: &Identity) -> String {
    let Identity { machine, boot, pid_namespace, uid, dir, .. } = who;
    let machine = if machine.is_empty() { "unknown" } else { machine };
    format!("uid {uid}, {dir}, machine {machine}, boot {boot}, pid namespace {pid_namespace}")
}
