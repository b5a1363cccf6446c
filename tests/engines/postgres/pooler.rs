//! The engine notices a connection pooler in between, however it is set up.

use std::fs;
use std::process::{Child, Command, Stdio};

use super::{is_installed, unable};
use crate::postgres_server::{Server, as_server_user, free_port, shared};
use crate::world::process::wait_until;

/// A PgBouncer in front of the server. Dropping it ends it.
struct Pooler {
    child: Child,
    port: u16,
}

impl Pooler {
    fn start(server: &Server, name: &str, settings: &str) -> Self {
        let port = free_port();
        let dir = server.dir().join(name);
        fs::create_dir(&dir).unwrap();
        server.give(&dir);
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
             listen_port={port}\nauth_type=any\nunix_socket_dir=\n{settings}\n",
            server.port
        );
        let config = config.replace("* = ", "locks = user=locks dbname=locks ");
        fs::write(dir.join("ini"), config).unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
        let program = program.iter().map(std::path::Path::new).find(|path| path.exists()).unwrap();
        let mut command: Command = as_server_user(program);
        let child =
            command.arg(dir.join("ini")).stdin(Stdio::null()).stdout(log.try_clone().unwrap());
        let child = child.stderr(log).spawn().unwrap();
        wait_until("PgBouncer", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { child, port }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_connection_pooler_is_refused_with_a_hint() {
    if !is_installed("pgbouncer", "pgbouncer") {
        return;
    }
    let Some(server) = shared() else { return };
    server.make_database("locks");
    for (name, settings) in [
        ("plain", "pool_mode=transaction"),
        ("lenient", "pool_mode=transaction\nignore_startup_parameters=options"),
        ("session", "pool_mode=session\nignore_startup_parameters=options"),
    ] {
        let pooler = Pooler::start(server, name, settings);
        let (why, hint) = unable(&format!("postgres://locks@127.0.0.1:{}/locks", pooler.port));
        assert!(why.contains("pooler"), "{name}: {why}");
        assert!(hint.contains("server itself"), "{name}: {hint}");
    }
}
