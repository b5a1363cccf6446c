//! The daemon that a user had before the machine got one.
//!
//! When `/run/canal` appears, clients turn to the machine's daemon, which does not know the grants
//! of the user's own daemon. Until that one has ended, the same key could be granted twice.
//!
//! The client makes this check, because the machine's daemon may not have access to the directory.
//!
//! Invariant: a request reaches the machine's daemon only if the user's own one has no holders and
//! no waiters, or has been asked to end.

use rustix::io::Errno;

use super::calls::Client;
use super::connection::options::Options;
use super::error::{ClientError, Result};
use canal_protocol::paths::{Place, Rule};
use canal_protocol::{KeyInfo, NoParameters, Status, StatusQuery};
use canal_sys::private_dir::is_private;
use canal_sys::process::user::{geteuid, lstat};

/// Refuses the request if the user's own daemon still has holds that a daemon of the machine does
/// not know.
///
/// If the user has no daemon, this takes one system call, which looks for its socket. A daemon that
/// ends normally removes its socket. A killed daemon leaves it, and is started again, because
/// commands to which it granted locks may still run. An idle daemon is asked to end, so that the
/// next request finds no socket.
pub(super) fn refuse_holders(place: &Place, options: &Options) -> Result<()> {
    if place.rule != Rule::Shared {
        return Ok(());
    }
    // Named by its socket, so that `/run/canal` does not take precedence.
    let own = Place { rule: Rule::Given, ..Place::of_user(place.uid.get()) };
    let is_ours = || is_private(&own.dir, geteuid().as_raw());
    if lstat(&own.socket).is_err_and(|error| error == Errno::NOENT) || !is_ours() {
        return Ok(());
    }
    let mut client = Client::connect(&own, options.clone())?;
    let status = client.status(&StatusQuery::default())?;
    if let Some(what) = in_use(&status) {
        return Err(ClientError::HeldAtOwnDaemon { what, socket: own.socket });
    }
    // If it does not end, the next request checks again.
    let _ = client.stop(&NoParameters {});
    Ok(())
}

/// The holders and waiters on this machine, for a message: `nightly (pid 812), 2 more`. `None` if
/// there are none.
fn in_use(status: &Status) -> Option<String> {
    let here = status.engine.as_ref().map(|engine| engine.host.as_str());
    let is_here = |host: Option<&String>| host.is_none() || host.map(String::as_str) == here;
    let of_key = |key: &KeyInfo| {
        let holders = key.holders.iter().filter(|it| is_here(it.host.as_ref())).map(|it| it.pid);
        let waiters = key.waiters.iter().filter(|it| is_here(it.host.as_ref())).map(|it| it.pid);
        let name = |pid: u32| match pid {
            // A lease belongs to no process.
            0 => key.key.clone(),
            _ => format!("{} (pid {pid})", key.key),
        };
        holders.chain(waiters).map(name).collect::<Vec<_>>()
    };
    let mut all = status.keys.iter().flat_map(of_key);
    let first = all.next()?;
    let more = all.count();
    // The count also covers keys that a very long status omits.
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    Some(first + &more)
}
