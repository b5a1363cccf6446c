//! Checks whether a peer has the permission for its request, and how much of the table the requests
//! of a user may take.

use std::os::fd::AsFd;

use crate::calls::conn_id::ConnId;
use crate::net::connection::Connection;
use crate::permissions::Action;
use crate::server::Server;
use crate::wording::refusal::owner_gone;
use canal_core::{Ask, HoldState, Item, Key, room_of};
use canal_protocol::{ErrorName, Failure};
use canal_sys::peer;

impl Server {
    /// Whether a user runs this daemon or is root. Only these may read and change its
    /// configuration.
    pub(crate) fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || uid == self.about.uid
    }

    /// Whether a peer may ask for these items, with this priority.
    pub(crate) fn may_hold(
        &self,
        id: ConnId,
        items: &[Item],
        priority: i32,
    ) -> Result<(), Failure> {
        for item in items {
            self.may(id, Action::Hold, &item.key)?;
            if priority > 0 {
                self.may(id, Action::Priority, &item.key)?;
            }
            match item.ask {
                // A read or a write of a key also takes the keys below it.
                Ask::Read | Ask::Write => {
                    for below in self.permissions.held_apart(&item.key) {
                        let what =
                            || format!("hold `{below}`, which is below `{key}`", key = item.key);
                        self.permitted(id, Action::Hold, below, what)?;
                    }
                }
                Ask::Counted { .. } => {}
            }
        }
        Ok(())
    }

    /// Whether a peer may end a hold that is not its own.
    pub(crate) fn may_force(&self, id: ConnId, hold: &HoldState) -> Result<(), Failure> {
        if self.conns.peek(id).is_some_and(|conn| conn.peer.uid == hold.asked.uid) {
            return Ok(());
        }
        hold.items.iter().try_for_each(|item| self.may(id, Action::Force, &item.key))
    }

    /// Whether a peer may take this action on a key.
    pub(crate) fn may(&self, id: ConnId, action: Action, key: &Key) -> Result<(), Failure> {
        self.permitted(id, action, key, || what(action, key))
    }

    pub(crate) fn permitted(
        &self,
        id: ConnId,
        action: Action,
        key: &Key,
        what: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let Some(conn) = self.conns.peek(id) else { return Err(owner_gone()) };
        let (uid, owner) = (conn.peer.uid, self.about.uid);
        if uid == 0 || uid == owner {
            return Ok(());
        }
        let who = self.permissions.who(action, key);
        if who.includes(|| groups_of(conn)) {
            return Ok(());
        }
        let (what, only) = (what(), who.only(owner));
        let file = self.permissions.file.display();
        Err(Failure::new(ErrorName::Denied, format!("uid {uid} may not {what}: {only} may"))
            .hint(format!("see `[[permission]]` in {file} and canal.toml(5)")))
    }

    /// Checks whether a user may ask for these items. The check comes before the request is
    /// recorded, so over an engine it does not count requests that are still in flight.
    pub(crate) fn check_quota(
        &self,
        uid: u32,
        items: &[Item],
        is_lease: bool,
    ) -> Result<(), Failure> {
        let used = self.ledger.table.usage(uid);
        let most = self.limits.leases_per_user;
        if is_lease && used.leases >= most {
            let message = format!("uid {uid} holds {} leases, the limit is {most}", used.leases);
            return Err(too_much(ErrorName::TooManyLeases, message, "leases_per_user"));
        }
        let most = self.limits.key_bytes_per_user;
        if used.key_bytes.saturating_add(room_of(items)) > most {
            let message = format!(
                "the keys that uid {uid} holds and waits for take {} bytes, the limit is {most}",
                used.key_bytes
            );
            return Err(too_much(ErrorName::TooManyKeys, message, "key_bytes_per_user"));
        }
        Ok(())
    }
}

/// The failure for a user who would take more than the limit.
fn too_much(name: ErrorName, message: String, setting: &str) -> Failure {
    tracing::warn!("{message}; refusing more");
    let hint = format!("release some first, or raise `{setting}` in the configuration");
    Failure::new(name, message).hint(hint)
}

pub(super) fn what(action: Action, key: &Key) -> String {
    match action {
        Action::Hold => format!("hold `{key}`"),
        Action::Resize => format!("resize `{key}`"),
        Action::Force => format!("release others' holds of `{key}` by force"),
        Action::Priority => format!("ask for `{key}` with a priority above 0"),
    }
}

pub(super) fn groups_of(conn: &Connection) -> Vec<u32> {
    let more = peer::groups(conn.as_fd()).unwrap_or_else(|error| {
        tracing::warn!(%error, uid = conn.peer.uid, "cannot read the groups of a peer");
        Vec::new()
    });
    let mut groups = vec![conn.peer.gid];
    groups.extend(more);
    groups
}
