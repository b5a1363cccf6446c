//! Connections: accepting them, reading calls, writing replies, and handling kernel events.
//!
//! Invariant: a reply is written whole, or its connection is closed.

pub(super) mod all_connections;
pub(super) mod call_state;
pub(super) mod connection;
pub(super) mod connection_limits;
pub(super) mod listen;
pub(super) mod unread_reports;
