//! The daemon of a host cannot start, is stopped, killed or cut off, or returns.

mod expired;
mod jobs;
mod operator;
mod restart;
mod start_errors;
mod unsupervised;
