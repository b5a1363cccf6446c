//! Nodes: several daemons that are asked for one lock. Which they are ([`list`]), how they are reached
//! ([`link`]), and whether each still is the one that was met first ([`pins`]).

pub mod link;
pub mod list;
pub mod pins;
pub mod ssh;
