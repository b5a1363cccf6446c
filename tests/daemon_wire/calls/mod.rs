//! Calls and their replies: order, cancellation, repeated calls, progress, and the interface
//! description.

mod answered;
mod cancel;
mod order;
mod progress;
mod reattach;
mod service;
