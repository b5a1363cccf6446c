//! The frame of each owner. The owner of a lease does not depend on the host that watches over it.

use std::collections::BTreeMap;

use crate::{FrameId, HostId, LeaseId, Owner, ProcessId, Tag};

/// The frames of the owners that have not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    processes: BTreeMap<(HostId, ProcessId), FrameId>,
    leases: BTreeMap<LeaseId, FrameId>,
    jobservers: BTreeMap<(HostId, Tag), FrameId>,
}

impl Owners {
    pub(crate) fn insert(&mut self, host: HostId, owner: &Owner, frame: FrameId) {
        match owner {
            Owner::Process(process) => self.processes.insert((host, *process), frame),
            Owner::Lease(lease) => self.leases.insert(*lease, frame),
            Owner::Jobserver(build) => self.jobservers.insert((host, *build), frame),
        };
    }

    pub(crate) fn remove(&mut self, host: HostId, owner: &Owner) {
        match owner {
            Owner::Process(process) => self.processes.remove(&(host, *process)),
            Owner::Lease(lease) => self.leases.remove(lease),
            Owner::Jobserver(build) => self.jobservers.remove(&(host, *build)),
        };
    }

    pub(crate) fn get(&self, host: HostId, owner: &Owner) -> Option<FrameId> {
        match owner {
            Owner::Process(process) => self.processes.get(&(host, *process)).copied(),
            Owner::Lease(lease) => self.leases.get(lease).copied(),
            Owner::Jobserver(build) => self.jobservers.get(&(host, *build)).copied(),
        }
    }

    /// The frames of the processes that have, or had, this pid.
    pub(crate) fn of_number(&self, host: HostId, pid: u32) -> impl Iterator<Item = FrameId> {
        let with = |rest| (host, ProcessId { pid, started: rest, inode: rest });
        self.processes.range(with(0)..=with(u64::MAX)).map(|(_, frame)| *frame)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.leases.is_empty() && self.jobservers.is_empty()
    }
}
