//! Connections: accepting them, reading calls, writing replies, and handling kernel events.
//!
//! Invariant: a reply is written whole, or its connection is closed.

pub(super) mod accept_backlog;
pub(super) mod adaptive_spin;
pub(super) mod call_state;
pub(super) mod connection;
pub(super) mod connection_limits;
pub(super) mod connections;
pub(super) mod events;
pub(super) mod listen;
pub(super) mod output;
pub(super) mod unread_reports;
