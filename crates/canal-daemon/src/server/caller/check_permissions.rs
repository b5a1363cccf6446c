//! Checks whether the client of a call has the permission for it.

use std::os::fd::AsFd;

use crate::calls::call::{Asked, ConnId, Trait};
use crate::calls::parameters;
use crate::config::permissions::{Action, only_operators};
use crate::net::connection::Connection;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::wording::{denied, owner_gone};
use canal_core::{Ask, HoldState, Item, Key};
use canal_protocol::{Handle, Release, Restrict};
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

    /// Whether a peer may end a hold that is not its own.
    pub(crate) fn may_force(&self, id: ConnId, hold: &HoldState) -> Result<()> {
        if self.conns.peek(id).is_some_and(|conn| conn.peer.uid == hold.asked.uid) {
            return Ok(());
        }
        hold.items.iter().try_for_each(|item| self.may(id, Action::Force, &item.key))
    }

    /// Whether a peer may take this action on a key.
    pub(crate) fn may(&self, id: ConnId, action: Action, key: &Key) -> Result<()> {
        self.permitted(id, action, key, || what(action, key))
    }

    fn permitted(
        &self,
        id: ConnId,
        action: Action,
        key: &Key,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        let Some(conn) = self.conns.peek(id) else { return Err(owner_gone()) };
        let (uid, owner) = (conn.peer.uid, self.about.uid);
        if uid == 0 || uid == owner {
            return Ok(());
        }
        let who = self.effective.config.permissions.who(action, key);
        if who.includes(|| groups_of(conn)) {
            return Ok(());
        }
        let (what, only) = (what(), who.only(owner));
        let file = self.effective.file().display();
        Err(denied(format!("uid {uid} may not {what}; {only} may do so"))
            .hint(format!("see `[[permission]]` in {file} and canal.toml(5)")))
    }
}

fn what(action: Action, key: &Key) -> String {
    match action {
        Action::Hold => format!("hold `{key}`"),
        Action::Resize => format!("resize `{key}`"),
        Action::Force => format!("break other users' holds on `{key}`"),
        Action::Priority => format!("ask for `{key}` with a priority above 0"),
    }
}

fn groups_of(conn: &Connection) -> Vec<u32> {
    let more = peer::groups(conn.as_fd()).unwrap_or_else(|error| {
        tracing::warn!(%error, uid = conn.peer.uid, "cannot read the groups of a peer");
        Vec::new()
    });
    let mut groups = vec![conn.peer.gid];
    groups.extend(more);
    groups
}

/// Restricts a connection, and enforces its restrictions.
impl Server {
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
}

/// The handle of a release that names nothing else.
pub(crate) fn of_handle(release: &Release) -> Option<Handle> {
    let others = release.key.is_some() || release.all || release.token.is_some();
    release.handle.filter(|_| !others)
}
