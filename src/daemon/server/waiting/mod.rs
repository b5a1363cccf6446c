//! What becomes of requests that wait: grants are told, waiters are informed, and given up when their client or
//! process is gone. [`Waiters`](crate::daemon::waiters::waiting::Waiters) owns the state.

mod detached;
mod disconnected;
mod grant;
mod note;
mod owner_ended;
mod progress;
mod stopped;
mod unsynced_leases;
