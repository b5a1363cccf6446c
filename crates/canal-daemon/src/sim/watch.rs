//! The watcher process of a machine's daemons: the watcher's own code on a simulated kernel.

use std::fmt;
use std::path::Path;

use crate::cluster::daemon_watcher::{Alone, Duty};
use crate::processes::holder_record::WatchId;
use crate::server::Server;
use canal_core::HostId;
use canal_sys::deadline_page::Reader;
use canal_sys::process::Origin;

/// The watcher of a machine.
#[derive(Default)]
pub(super) struct Watch {
    /// The last membership of a daemon, and its deadline page.
    page: Option<(HostId, Reader)>,
    /// The watcher after the end of its daemon.
    alone: Option<Alone>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?})", self.page.as_ref().map(|(host, _)| host))
    }
}

impl Watch {
    /// Acts if no daemon does. `dir` is the folder of the daemon's files.
    pub(super) fn step(&mut self, daemon: Option<&Server>, dir: &Path) {
        match daemon {
            Some(server) => self.follow(server),
            None => {
                if let Some((_, page)) = self.page.take() {
                    let duty = Duty::new(WatchId::default(), page);
                    self.alone = Some(Alone::new(dir, Origin::read().unwrap(), duty));
                }
            }
        }
        if self.alone.as_mut().is_some_and(Alone::look) {
            self.alone = None;
        }
    }

    /// Learns of a new membership. From then on the holds are those of its daemon.
    fn follow(&mut self, server: &Server) {
        let host = server.decide.host();
        let is_known = self.page.as_ref().is_some_and(|(known, _)| *known == host);
        if is_known || !server.decide.is_member() {
            return;
        }
        let mut fds = Vec::new();
        if server.decide.add_page(&mut fds).unwrap().is_some() {
            let (line, page) = (fds.remove(1), fds.remove(0));
            self.page = Some((host, Reader::open(page, line).unwrap()));
            self.alone = None;
        }
    }
}
