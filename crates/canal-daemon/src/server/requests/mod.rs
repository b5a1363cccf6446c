//! The calls of clients: one file for each subject. `reports` answers about the whole table; these
//! replies may be long, so a turn builds them only while there is room.

mod acquire;
mod configuration;
mod kill;
mod leases;
mod nodes;
mod priority;
mod reattach;
mod refuse_or_defer;
mod release;
mod reports;
mod resize;
