//! Tracks what a bridge must know about the messages that pass through it. No I/O and no clock.
//!
//! Invariant: a connection to the daemon may be replaced behind the client's back only if nothing
//! depends on it: the daemon owes no answer, and no grant ends with it.

use std::collections::VecDeque;

use serde::Deserialize;

use canal_protocol::NODES_INTERFACE;

/// How long a client that has not yet asked for a lease may be silent, in milliseconds.
const SILENCE_MS: u64 = 60_000;

/// The bridge's knowledge of a client and its daemon.
#[derive(Debug)]
pub(super) struct Traffic {
    /// The calls that the daemon has not answered yet, in the order of the calls.
    owed: VecDeque<Call>,
    /// Whether the client has asked for a lease and not confirmed it, so that the lease ends with
    /// the connection.
    collecting: bool,
    /// The TTL of the lease that the client last asked for, in milliseconds.
    ttl_ms: Option<u64>,
}

/// The kinds of calls that the bridge distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Collect,
    ConfirmAt,
    /// The daemon answers it repeatedly until it is cancelled.
    Watch,
    Other,
}

/// The bridge's action on a message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    /// A sign of life: the bridge answers it with another beat.
    Beat,
    /// A call, which the bridge passes to the daemon.
    Call,
}

#[derive(Deserialize)]
struct CallSeen {
    method: String,
    #[serde(default)]
    oneway: bool,
    #[serde(default)]
    more: bool,
    parameters: Option<ParametersSeen>,
}

#[derive(Deserialize)]
struct ParametersSeen {
    ttl_ms: Option<u64>,
}

#[derive(Deserialize)]
struct ReplySeen {
    #[serde(default)]
    continues: bool,
    error: Option<String>,
}

impl Traffic {
    pub(super) fn new() -> Self {
        Self { owed: VecDeque::new(), collecting: false, ttl_ms: None }
    }

    /// Records a whole message of the client, without its terminator.
    pub(super) fn client_said(&mut self, message: &[u8]) -> Passing {
        if message.is_empty() {
            return Passing::Beat;
        }
        // The daemon answers a message that it does not understand with an error, which is one
        // reply.
        let seen: Option<CallSeen> = serde_json::from_slice(message).ok();
        let name = seen.as_ref().and_then(|seen| {
            seen.method.strip_prefix(NODES_INTERFACE).and_then(|name| name.strip_prefix('.'))
        });
        let call = match name {
            Some("Collect") => Call::Collect,
            Some("ConfirmAt") => Call::ConfirmAt,
            _ if seen.as_ref().is_some_and(|seen| seen.more) => Call::Watch,
            _ => Call::Other,
        };
        if call == Call::Collect {
            self.collecting = true;
            let parameters = seen.as_ref().and_then(|seen| seen.parameters.as_ref());
            self.ttl_ms = parameters.and_then(|parameters| parameters.ttl_ms).or(self.ttl_ms);
        }
        if !seen.is_some_and(|seen| seen.oneway) {
            self.owed.push_back(call);
        }
        Passing::Call
    }

    /// Records a whole message of the daemon, without its terminator.
    pub(super) fn daemon_said(&mut self, message: &[u8]) {
        let seen: Option<ReplySeen> = serde_json::from_slice(message).ok();
        if seen.as_ref().is_some_and(|seen| seen.continues) {
            return;
        }
        let failed = seen.is_none_or(|seen| seen.error.is_some());
        match self.owed.pop_front() {
            Some(Call::Collect) if failed => self.collecting = false,
            // If the grant failed, nothing is left to lose; if it is confirmed, it no longer
            // depends on the connection.
            Some(Call::ConfirmAt) => self.collecting = false,
            _ => {}
        }
    }

    /// Whether another connection to the daemon may replace the present one.
    pub(super) fn may_reattach(&self) -> bool {
        self.owed.is_empty() && !self.collecting
    }

    /// How long the daemon may go without a message from the client, in milliseconds. It ends an
    /// unconfirmed grant if it receives none for the TTL.
    pub(super) fn word_after_ms(&self) -> Option<u64> {
        let has_grant = self.collecting && self.owed.is_empty();
        has_grant.then_some(self.silence_ms() / 4)
    }

    /// Whether the daemon owes answers, and all of them come soon.
    pub(super) fn only_short_answers_owed(&self) -> bool {
        let is_short = |call: &Call| !matches!(call, Call::Collect | Call::Watch);
        !self.owed.is_empty() && self.owed.iter().all(is_short)
    }

    /// How long the client may be silent, in milliseconds.
    pub(super) fn silence_ms(&self) -> u64 {
        self.ttl_ms.unwrap_or(SILENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(traffic: &mut Traffic, method: &str, more: &str) {
        let message = format!("{{\"method\":\"io.canal.Nodes.{method}\"{more}}}");
        assert_eq!(traffic.client_said(message.as_bytes()), Passing::Call);
    }

    #[test]
    fn a_connection_is_replaced_only_where_nothing_depends_on_it() {
        let mut traffic = Traffic::new();
        assert!(traffic.may_reattach());
        call(&mut traffic, "Identify", "");
        assert!(!traffic.may_reattach(), "an answer is owed");
        assert!(traffic.only_short_answers_owed());
        traffic.daemon_said(b"{\"parameters\":{}}");
        assert!(traffic.may_reattach());
        call(&mut traffic, "Collect", ",\"more\":true,\"parameters\":{\"ttl_ms\":20000}");
        assert!(!traffic.only_short_answers_owed());
        traffic.daemon_said(b"{\"continues\":true,\"parameters\":{}}");
        assert!(!traffic.may_reattach(), "it waits");
        assert_eq!(traffic.word_after_ms(), None);
        traffic.daemon_said(b"{\"parameters\":{}}");
        assert!(!traffic.may_reattach(), "its grant ends with the connection");
        assert_eq!(traffic.word_after_ms(), Some(5_000));
        call(&mut traffic, "ConfirmAt", "");
        traffic.daemon_said(b"{\"parameters\":{}}");
        assert!(traffic.may_reattach());
        assert_eq!(traffic.word_after_ms(), None);
        call(&mut traffic, "Report", ",\"oneway\":true");
        assert!(traffic.may_reattach(), "nothing is owed");
    }

    #[test]
    fn a_watch_has_no_last_answer_to_wait_for() {
        let mut traffic = Traffic::new();
        call(&mut traffic, "Watch", ",\"more\":true");
        assert!(!traffic.only_short_answers_owed());
        traffic.daemon_said(b"{\"continues\":true,\"parameters\":{}}");
        assert!(!traffic.may_reattach(), "the next daemon does not know of it");
    }

    #[test]
    fn a_refused_lease_keeps_no_connection() {
        let mut traffic = Traffic::new();
        call(&mut traffic, "Collect", "");
        traffic.daemon_said(b"{\"error\":\"io.canal.Lock.Refused\",\"parameters\":{}}");
        assert!(traffic.may_reattach());
    }

    #[test]
    fn what_is_no_call_is_answered_once_all_the_same() {
        let mut traffic = Traffic::new();
        assert_eq!(traffic.client_said(b"junk"), Passing::Call);
        assert!(!traffic.may_reattach());
        traffic.daemon_said(b"{\"error\":\"x\"}");
        assert!(traffic.may_reattach());
        traffic.daemon_said(b"junk");
        assert!(traffic.may_reattach(), "more answers than calls");
    }

    #[test]
    fn a_client_may_be_silent_for_the_ttl_of_its_lease() {
        let mut traffic = Traffic::new();
        assert_eq!(traffic.silence_ms(), 60_000);
        assert_eq!(traffic.client_said(b""), Passing::Beat);
        call(&mut traffic, "Collect", ",\"parameters\":{\"ttl_ms\":20000}");
        assert_eq!(traffic.silence_ms(), 20_000);
        call(&mut traffic, "Collect", "");
        assert_eq!(traffic.silence_ms(), 20_000);
    }
}
