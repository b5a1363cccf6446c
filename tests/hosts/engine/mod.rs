//! The engine stops, loses its leader, is compacted, or forgets what it acknowledged.

mod compacted;
mod doctor;
mod full;
mod leader;
mod lost_entries;
mod outage;
mod restored;
mod unavailable;
