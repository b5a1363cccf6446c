//! Locks that a script takes and gives back itself, and leases.

mod acquire_forms;
mod fencing;
mod leases;
mod renew_while;
