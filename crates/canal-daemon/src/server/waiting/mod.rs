//! Handles requests that wait: sends their grants and progress, and withdraws them when their
//! client or process is gone. [`Waiters`](crate::waiters::waiting::Waiters) owns the state.

mod detached;
mod disconnected;
mod grant;
mod note;
mod owner_ended;
mod progress;
mod stopped;
