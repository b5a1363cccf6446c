//! This host as a member of the table that many hosts share: joins it, loses it, ends commands in
//! time, and keeps the calls that wait for it.
//! [`Cluster`](crate::cluster::member_and_engine::Cluster) owns the state.

mod join_and_lose;
mod take_over;
mod waiting_calls;
