//! Ending a daemon.

use std::time::Duration;

use crate::protocol::{Stop, Stopping};
use crate::sys::pidfd::Pidfd;

use crate::client::connection::silence::{Limits, Owed};
use crate::client::connection::stream::{Replies, activity, parameters};
use crate::client::error::Broken;
use crate::client::{Client, ClientError};

/// How long a daemon may take to end. The same is true as of its answers: a busy one may take
/// longer.
const END_MAX: Duration = Duration::from_secs(10);

impl Client {
    /// Ends the daemon and waits until it is gone: its process where that can be known, else its
    /// end of the connection. What it holds is taken up by the next one.
    ///
    /// # Errors
    /// It is not gone after 10 s, or after a minute of work: [`ClientError::Silent`].
    pub fn stop(&mut self, stop: &Stop) -> Result<Stopping, ClientError> {
        match self.stop_once(stop) {
            Ok(stopping) => Ok(stopping),
            Err(Broken::Failed(error)) => Err(error),
            Err(Broken::Disconnected(_)) => Err(ClientError::Gone),
        }
    }

    fn stop_once(&mut self, stop: &Stop) -> Result<Stopping, Broken> {
        let limits = Limits::from(&self.options);
        let mut connection = self.take_connection()?;
        // Under socket activation the service manager listens, and in another pid namespace the
        // daemon has another number. Only where both numbers agree do they name the daemon.
        let listener = connection.pid();
        // A daemon in a thread of this process does not take it along.
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

/// Waits for the end of a daemon; whether it has ended in time.
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
