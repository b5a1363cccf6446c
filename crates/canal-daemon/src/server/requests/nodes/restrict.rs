//! Restricts a connection, and enforces its restrictions.

use crate::calls::call::{Asked, Trait};
use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::wording::refusal::owner_gone;
use canal_core::Key;
use canal_protocol::{ErrorName, Failure, Release, Restrict};

impl Server {
    pub(crate) fn restrict(&mut self, id: ConnId, restrict: &Restrict) -> Result<Step, Failure> {
        let keys = restrict.keys.iter().map(|key| items::key(key.strip_suffix('/').unwrap_or(key)));
        let keys = keys.collect::<Result<Vec<Key>, Failure>>()?;
        let Some(conn) = self.conns.get(id) else { return Err(owner_gone()) };
        if !conn.restriction.get_or_insert_default().add(keys) {
            let message = "this connection was restricted too many times";
            return Err(Failure::new(ErrorName::Denied, message));
        }
        Ok(Step::reply(&Nothing {}))
    }

    /// Whether the restrictions of a connection allow a call.
    pub(crate) fn may_call(&self, id: ConnId, asked: &Asked) -> Result<(), Failure> {
        let restriction = self.conns.peek(id).and_then(|conn| conn.restriction.as_ref());
        let Some(restriction) = restriction else { return Ok(()) };
        let allows = match asked {
            Asked::Collect(collect) => restriction.allows(&collect.items),
            Asked::Release(release) => is_by_handle(release),
            _ => asked.is(Trait::IsUnrestricted),
        };
        if allows { Ok(()) } else { Err(Failure::new(ErrorName::Denied, restriction.words())) }
    }
}

fn is_by_handle(release: &Release) -> bool {
    let Release { key, all, token, handle, owner_fd } = release;
    handle.is_some() && key.is_none() && !all && token.is_none() && owner_fd.is_none()
}

#[derive(serde::Serialize)]
struct Nothing {}
