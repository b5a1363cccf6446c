//! Ending a daemon.

use std::time::Duration;

use crate::protocol::{Stop, Stopping};
use crate::sys::pidfd::Pidfd;

use crate::client::connection::stream::{Replies, parameters};
use crate::client::error::Broken;
use crate::client::{Client, ClientError};

/// How long a daemon may take to end.
const END_MAX: Duration = Duration::from_secs(10);

impl Client {
    /// Ends the daemon and waits until it is gone: its process where that can be known, else its
    /// end of the connection. What it holds is taken up by the next one.
    ///
    /// # Errors
    /// It is not gone after 10 s: [`ClientError::Silent`].
    pub fn stop(&mut self, stop: &Stop) -> Result<Stopping, ClientError> {
        match self.stop_once(stop) {
            Ok(stopping) => Ok(stopping),
            Err(Broken::Failed(error)) => Err(error),
            Err(Broken::Disconnected(_)) => Err(ClientError::Gone),
        }
    }

    fn stop_once(&mut self, stop: &Stop) -> Result<Stopping, Broken> {
        let answer = self.options.answer;
        let mut connection = self.take_connection()?;
        // Under socket activation the service manager listens, and in another pid namespace the
        // daemon has another number. Only where both numbers agree do they name the daemon.
        let listener = connection.pid();
        // A daemon in a thread of this process does not take it along.
        let elsewhere = listener.filter(|pid| *pid != std::process::id());
        let watched = elsewhere.and_then(|pid| Pidfd::open(pid).ok());
        connection.send("Stop", stop, Replies::One, None, answer)?;
        let stopping: Stopping = parameters(connection.reply(answer)?)?;
        let ended = match watched {
            Some(pidfd) if listener == Some(stopping.pid) => {
                let milliseconds = u16::try_from(END_MAX.as_millis()).unwrap_or(u16::MAX);
                pidfd.wait_end(milliseconds)
            }
            _ => connection.wait_closed(END_MAX),
        };
        if ended { Ok(stopping) } else { Err(ClientError::silent(Some(stopping.pid)).into()) }
    }
}
