//! Hosts, leases, nodes and recovery: what ends when the host or the client behind it is gone.

mod hosts;
mod leases;
mod nodes;
mod recovery;
