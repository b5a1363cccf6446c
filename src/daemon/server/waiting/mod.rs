//! What becomes of requests that wait: grants are told, waiters are informed, and given up when their client or
//! process is gone. [`Waiters`](crate::daemon::waiters::waiting::Waiters) owns the state.

mod detached;
mod ended;
mod grant;
mod note;
mod progress;
mod stopped;
mod unsynced_leases;
