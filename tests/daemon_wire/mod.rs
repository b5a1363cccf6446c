//! The daemon as a bare peer sees it: frames over a socket, without the client library.
//!
//! No test sleeps and hopes; each waits for a condition with a bound.

mod calls;
mod leases;
mod lifecycle;
mod limits;
mod locks;
mod nodes;
