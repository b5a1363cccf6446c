//! The daemon of a host cannot start, stands still, is killed or cut off, or comes back.

mod expired;
mod operator;
mod restart;
mod start_errors;
mod unsupervised;
