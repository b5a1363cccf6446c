//! The members of a cluster, and which of them leads.

use super::{Etcd, until};

/// All of them, as an address names them.
pub(crate) fn endpoints(members: &[Etcd]) -> String {
    let endpoints: Vec<_> = members.iter().map(Etcd::endpoint).collect();
    endpoints.join(",")
}

/// Which one leads; all must be there.
pub(crate) fn leader(members: &[Etcd]) -> usize {
    members.iter().position(Etcd::leads).unwrap()
}

/// Waits until one leads that is not `fallen`, which is not asked.
pub(crate) fn until_another_leads(members: &[Etcd], fallen: usize) {
    let leads =
        |member: &Etcd| member.ctl(&["endpoint", "status"]).status.success() && member.leads();
    until("there is another leader", || {
        members.iter().enumerate().any(|(n, member)| n != fallen && leads(member))
    });
}
