//! The calls of clients: one file for each subject. Replies about the whole table (status, why,
//! graph) may be long, so a turn builds them only while there is room.

mod acquire;
mod caller;
mod configuration;
mod history;
mod kill;
mod leases;
mod nodes;
mod release;
mod resize;
mod status;
