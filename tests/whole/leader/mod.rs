//! Candidates, leaders and watchers: `canal leader`.

mod kills;
mod shown;
mod watch;
