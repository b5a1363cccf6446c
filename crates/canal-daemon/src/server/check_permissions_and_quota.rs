//! Checks whether the client of a call has the permission for it, and how much of the table and of
//! the journal the requests of a user may take.

use std::os::fd::AsFd;

use crate::calls::call::{Asked, ConnId, Trait};
use crate::calls::parameters;
use crate::config::permissions::{Action, only_operators};
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::store::table_and_log::disk_full;
use crate::wording::{denied, owner_gone};
use canal_core::{Ask, Item, Key, room_of};
use canal_protocol::{ErrorName, Failure, Handle, Release, Restrict};
use canal_sys::peer;

impl Server {
    /// Whether a user runs this daemon or is root. Only these may read and change its
    /// configuration.
    pub(crate) fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || uid == self.about.uid
    }

    /// Checks whether a user may do `what` only operators may do.
    pub(crate) fn check_operator(&self, uid: u32, what: &str) -> Result<()> {
        if self.is_operator(uid) {
            return Ok(());
        }
        let only = only_operators(self.about.uid);
        Err(denied(format!("uid {uid} may not {what}; {only} may do so")))
    }

    /// Whether a peer may ask for these items, with this priority.
    pub(crate) fn may_hold(&self, id: ConnId, items: &[Item], priority: i32) -> Result<()> {
        for item in items {
            self.may(id, Action::Hold, &item.key)?;
            if priority > 0 {
                self.may(id, Action::Priority, &item.key)?;
            }
            // A read or a write of a key also takes the keys below it.
            if let Ask::Read | Ask::Write = item.ask {
                for below in self.effective.config.permissions.held_apart(&item.key) {
                    let what = || format!("hold `{below}`, which is below `{}`", item.key);
                    self.permitted(id, Action::Hold, below, what)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a peer may take this action on a key.
    pub(crate) fn may(&self, id: ConnId, action: Action, key: &Key) -> Result<()> {
        self.permitted(id, action, key, || match action {
            Action::Hold => format!("hold `{key}`"),
            Action::Resize => format!("resize `{key}`"),
            Action::Force => format!("break other users' holds on `{key}`"),
            Action::Priority => format!("ask for `{key}` with a priority above 0"),
        })
    }

    fn permitted(
        &self,
        id: ConnId,
        action: Action,
        key: &Key,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        let Some(conn) = self.conns.peek(id) else { return Err(owner_gone()) };
        let (uid, who) = (conn.peer.uid, self.effective.config.permissions.who(action, key));
        let groups = || {
            let more = peer::groups(conn.as_fd()).unwrap_or_else(|error| {
                tracing::warn!(%error, uid, "cannot read the groups of a peer");
                Vec::new()
            });
            more.into_iter().chain([conn.peer.gid]).collect()
        };
        if self.is_operator(uid) || who.includes(groups) {
            return Ok(());
        }
        let (what, only) = (what(), who.only(self.about.uid));
        let file = self.effective.file().display();
        Err(denied(format!("uid {uid} may not {what}; {only} may do so"))
            .hint(format!("see `[[permission]]` in {file} and canal.toml(5)")))
    }

    /// Restricts a connection from its next call on.
    pub(crate) fn restrict(&mut self, caller: &Caller, restrict: &Restrict) -> Result {
        let keys =
            restrict.keys.iter().map(|key| parameters::key(key.strip_suffix('/').unwrap_or(key)));
        let keys = keys.collect::<Result<Vec<Key>>>()?;
        let Some(conn) = self.conns.get(caller.id) else { return Err(owner_gone()) };
        if !conn.restriction.get_or_insert_default().add(keys) {
            return Err(denied("this connection was restricted too many times"));
        }
        Ok(Step::done())
    }

    /// Whether the restrictions of a connection allow a call.
    pub(crate) fn may_call(&self, id: ConnId, asked: &Asked) -> Result<()> {
        let restriction = self.conns.peek(id).and_then(|conn| conn.restriction.as_ref());
        let Some(restriction) = restriction else { return Ok(()) };
        let allows = match asked {
            Asked::Collect(collect) => restriction.allows(&collect.items),
            Asked::Release(release) => of_handle(release).is_some() && release.owner_fd.is_none(),
            _ => asked.is(Trait::IsUnrestricted),
        };
        if allows { Ok(()) } else { Err(denied(restriction.words())) }
    }

    /// Checks whether a user may ask for these items, perhaps for a lease. The check comes before
    /// the request is recorded, so over an engine it does not count requests that are still in
    /// flight.
    pub(crate) fn check_quota(&self, uid: u32, items: &[Item], is_lease: bool) -> Result<()> {
        let (used, limits) = (self.decide.table().usage(uid), &self.effective.config.limits);
        let most = limits.leases_per_user;
        if is_lease && used.leases >= most {
            let message = format!("uid {uid} holds {} leases; the limit is {most}", used.leases);
            return Err(too_much(ErrorName::TooManyLeases, message, "leases_per_user"));
        }
        let most = limits.key_bytes_per_user;
        if used.key_bytes.saturating_add(room_of(items)) > most {
            let message = format!(
                "the keys that uid {uid} holds and waits for take up {} bytes; the limit is {most}",
                used.key_bytes
            );
            return Err(too_much(ErrorName::TooManyKeys, message, "key_bytes_per_user"));
        }
        Ok(())
    }

    /// Reserves room in the journal for an entry for which no request has reserved any.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.decide.ledger_mut().admit_bytes(bytes).map_err(|error| disk_full(&error))
    }
}

/// The handle of a release that names nothing else.
pub(crate) fn of_handle(release: &Release) -> Option<Handle> {
    let others = release.key.is_some() || release.all || release.token.is_some();
    release.handle.filter(|_| !others)
}

/// The failure for a user who would take more than the limit.
fn too_much(name: ErrorName, message: String, setting: &str) -> Failure {
    tracing::warn!("{message}; refusing more");
    let hint = format!("release some first, or raise `{setting}` in the configuration");
    Failure::new(name, message).hint(hint)
}
