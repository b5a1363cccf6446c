//! Locks that a script acquires and releases itself, and leases.

mod acquire_forms;
mod fencing;
mod leases;
mod renew_while;
