//! Tests of the table as a whole.

mod brute;
mod detection;
mod examples;
mod explore;
mod flaws;
mod hosts;
mod leases;
mod locks;
mod nested;
mod order;
mod random;
mod recovery;
mod reentry;
mod resize;
mod rings;
mod states;
mod upgrade;
mod world;
