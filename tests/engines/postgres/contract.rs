//! The duties of every engine.

use canal::log::engine::Engine;
use canal::log::engine::postgres;

use crate::engine_contract::{Log, contract};
use crate::postgres_server::shared;

/// A log in a separate database.
struct Database {
    url: String,
}

impl Log for Database {
    fn engine(&self, label: &str) -> Box<dyn Engine + Send> {
        Box::new(postgres::open(crate::engines::fixed(&self.url), label).unwrap())
    }
}

fn database() -> Option<Database> {
    Some(Database { url: shared()?.new_url() })
}

contract!(database);
