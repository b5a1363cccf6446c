//! The incarnations that claim the label of this host.

use std::collections::BTreeMap;

use canal_core::HostId;
use canal_log::engine::{Claimant, Identity, Sign};

/// The incarnations with this host's label that had not ended when it registered.
#[derive(Debug, Default)]
pub(in crate::host) struct Others {
    /// Earlier incarnations of this place, one of which this incarnation may adopt.
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
    /// `lost` returns whether this daemon gave up the incarnation with a nonce. `boots` are the
    /// boots in which daemons of this place are known to have run.
    pub(in crate::host) fn sort(
        us: &Identity,
        lost: impl Fn(u128) -> bool,
        boots: &[String],
        all: Vec<Claimant>,
    ) -> Self {
        let mut others = Self::default();
        for Claimant { host, nonce, identity: who } in all {
            if lost(nonce) || is_of_earlier_boot(&who, us, boots) {
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

/// Whether every process of `who` must be gone, because the machine has rebooted since. Only this
/// place's own record of that boot proves it: machines and containers made from one image have the
/// same machine id, the same folders and often the same name, but each has its own boot.
fn is_of_earlier_boot(who: &Identity, us: &Identity, boots: &[String]) -> bool {
    let same_place =
        (&who.label, &who.machine, who.uid, &who.dir) == (&us.label, &us.machine, us.uid, &us.dir);
    same_place && who.boot != us.boot && boots.contains(&who.boot)
}

/// Describes an identity for people.
pub(in crate::host) fn described(who: &Identity) -> String {
    let Identity { machine, boot, pid_namespace, uid, dir, dir_number, .. } = who;
    let machine = if machine.is_empty() { "unknown" } else { machine };
    format!(
        "uid {uid}, {dir}, machine {machine}, boot {boot}, pid namespace {pid_namespace}, \
         directory number {dir_number}"
    )
}
