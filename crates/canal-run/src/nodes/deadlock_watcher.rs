//! Looks for deadlocks over nodes on behalf of a process that waits for a plain lock within a run
//! over nodes.
//!
//! It is a separate process, but not a child of the waiting process: the waiting process becomes
//! its command, and a command must not find a child that it did not start. It ends when the channel
//! between them closes, as soon as the waiting process continues or ends.

use std::os::fd::AsFd;
use std::{io, process};

use nix::unistd::dup2_stderr;

use canal_lock::client::channel::{End, Received};
use canal_lock::client::deadlock_search::Found;
use canal_nodes::Input;
use canal_protocol::RunId;
use canal_sys::clock::boottime_ms;
use canal_sys::fds;
use canal_sys::process::child::fork;

use super::coordinator_process::stand_alone;
use super::node_connection::sleep;
use super::nodes_request::Around;
use super::waits_reader::WaitsReader;

/// `canal deadlock-watcher`, which [`WaitWithin`](canal_lock::client::deadlock_search::WaitWithin)
/// starts: it starts a process that looks and is not a child of the waiting one. Standard input is
/// the channel.
///
/// # Errors
/// No process can be started.
pub fn watch_for_deadlocks(around: &Around, run: RunId) -> io::Result<()> {
    let channel = End(io::stdin().as_fd().try_clone_to_owned()?);
    let Received::Message(tag, _) = channel.receive() else { return Ok(()) };
    if fork()?.is_some() {
        return Ok(());
    }
    stand_alone();
    fds::keep_only(&[channel.as_fd()]);
    // This process prints nothing, so no reader of standard error should have to wait for it.
    let _ = dup2_stderr(io::stdout());
    let mut waits_reader = WaitsReader::of_plain(around, run, tag);
    loop {
        let found = waits_reader.turn(true, boottime_ms());
        if let Some(Input::Deadlock(message)) = found {
            channel.send(&Found::Deadlock { message, cycle: waits_reader.cycle }, &[]);
            process::exit(0);
        }
        if let Some(nodes) = waits_reader.news.take() {
            channel.send(&Found::Unread(nodes), &[]);
        }
        let due_ms = waits_reader.wake_at.map_or(u64::MAX, |at| at.saturating_sub(boottime_ms()));
        let _ = sleep(waits_reader.members(), [channel.as_fd()], due_ms);
        if let Received::End = channel.receive::<Found>() {
            process::exit(0);
        }
    }
}
