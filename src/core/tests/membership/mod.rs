//! Hosts, leases and recovery: what ends when its keeper is gone.

mod hosts;
mod leases;
mod recovery;
