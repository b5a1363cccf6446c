//! Ends a daemon.

use std::time::Duration;

use canal_protocol::{Stop, Stopping};
use canal_sys::pidfd::Pidfd;

use crate::client::connection::silence::{Limits, Owed};
use crate::client::connection::stream::{Replies, activity, parameters};
use crate::client::error::Broken;
use crate::client::{Client, ClientError, Result};

/// How long a daemon may take to end. A busy one may take longer, as it may for its answers.
const END_MAX: Duration = Duration::from_secs(10);

impl Client {
    /// Ends the daemon and waits until it is gone. It watches the daemon's process if that is
    /// known, and the daemon's end of the connection otherwise. The next daemon takes over its
    /// holds.
    ///
    /// # Errors
    /// [`ClientError::Silent`] if the daemon is not gone after 10 s, or after a minute of work.
    pub fn stop(&mut self, stop: &Stop) -> Result<Stopping> {
        match self.stop_once(stop) {
            Ok(stopping) => Ok(stopping),
            Err(Broken::Failed(error)) => Err(error),
            Err(Broken::Disconnected(_)) => Err(ClientError::Gone),
        }
    }

    fn stop_once(&mut self, stop: &Stop) -> Result<Stopping, Broken> {
        let limits = Limits::from(&self.options);
        let mut connection = self.take_connection()?;
        // With socket activation, the listening process is the service manager, and in another pid
        // namespace the daemon has another pid. The pids name the daemon only if they agree.
        let listener = connection.pid();
        // A daemon that runs as a thread of this process ends without it.
        let elsewhere = listener.filter(|pid| *pid != std::process::id());
        let watched = elsewhere.and_then(|pid| Pidfd::open(pid).ok());
        connection.send("Stop", stop, Replies::One, None, limits)?;
        let stopping: Stopping = parameters(connection.reply(limits)?)?;
        let limits = Limits { idle: END_MAX.max(limits.idle), ..limits };
        let ended = match watched {
            Some(pidfd) if listener == Some(stopping.pid) => ends(&pidfd, stopping.pid, limits),
            _ => connection.wait_closed(limits),
        };
        if ended { Ok(stopping) } else { Err(ClientError::silent(Some(stopping.pid)).into()) }
    }
}

/// Waits for the end of a daemon. Returns whether it ended in time.
fn ends(daemon: &Pidfd, pid: u32, limits: Limits) -> bool {
    let mut owed = Owed::new(limits);
    loop {
        let patience = owed.patience();
        if daemon.wait_end(u16::try_from(patience.as_millis()).unwrap_or(u16::MAX)) {
            return true;
        }
        if owed.grow(patience, || activity(Some(pid))) {
            return false;
        }
    }
}
