//! TLS, with the guarantees of each `sslmode`.

use std::path::{Path, PathBuf};
use std::process::Command;

use canal::log::engine::postgres;

use super::{is_installed, joined, unable};
use crate::engines::fixed;
use crate::postgres_server::{Server, shared, start_postgres};

fn openssl(dir: &Path, arguments: &str) {
    let ran = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output().unwrap();
    assert!(ran.status.success(), "{arguments}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// Makes an authority `NAME.crt`, and a key and certificate `NAME-host.*` signed by it, for `host`.
fn authority(dir: &Path, name: &str, host: &str) {
    std::fs::write(
        dir.join("ext"),
        format!("subjectAltName=DNS:{host}\nbasicConstraints=CA:FALSE\n"),
    )
    .unwrap();
    let ec = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        dir,
        &format!("req -x509 {ec} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt"),
    );
    openssl(dir, &format!("req {ec} -subj /CN=x -keyout {name}-host.key -out {name}-host.csr"));
    openssl(
        dir,
        &format!(
            "x509 -req -in {name}-host.csr -CA {name}.crt -CAkey {name}.key -CAcreateserial \
             -days 2 -extfile ext -out {name}-host.crt"
        ),
    );
}

/// A server with TLS whose certificate is for `localhost`.
struct Secure {
    server: Server,
}

impl Secure {
    fn start() -> Option<Self> {
        if !is_installed("openssl", "openssl") {
            return None;
        }
        let mut server = start_postgres()?;
        server.make_database("locks");
        let dir = server.dir().to_owned();
        authority(&dir, "good", "localhost");
        authority(&dir, "evil", "localhost");
        server.halt();
        for (from, to) in [("good-host.crt", "server.crt"), ("good-host.key", "server.key")] {
            let to = server.data().join(to);
            std::fs::copy(dir.join(from), &to).unwrap();
            server.give(&to);
        }
        server.configure("ssl = on\nssl_ca_file = '../good.crt'");
        server.hba("local all all trust\nhostssl all all all trust\n");
        server.start();
        Some(Self { server })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.server.dir().join(name)
    }

    fn url(&self, host: &str, options: &str) -> String {
        let port = self.server.port;
        let options = options.replace("DIR", self.server.dir().to_str().unwrap());
        format!("postgres://locks@{host}:{port}/locks?{options}")
    }
}

#[test]
fn tls_keeps_what_sslmode_promises() {
    let Some(secure) = Secure::start() else { return };
    assert!(secure.file("good.crt").exists());
    for (host, options) in [
        ("localhost", ""),
        ("127.0.0.1", "sslmode=prefer"),
        ("127.0.0.1", "sslmode=require"),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=DIR/good.crt"),
        ("localhost", "sslmode=verify-full&sslrootcert=DIR/good.crt"),
        ("localhost", "sslmode=require&sslcert=DIR/good-host.crt&sslkey=DIR/good-host.key"),
    ] {
        let mut one = joined(&secure.url(host, options), "one");
        one.append(b"a");
        let used = secure.server.sql(
            "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
             WHERE a.datname = 'locks'",
        );
        assert_eq!(used, "t", "{options}");
    }
    // `require` with authorities verifies, as in libpq.
    for (host, options, says, hints) in [
        ("localhost", "sslmode=verify-full&sslrootcert=DIR/evil.crt", "certificate", "sslrootcert"),
        ("localhost", "sslmode=verify-ca&sslrootcert=DIR/evil.crt", "certificate", "sslrootcert"),
        ("localhost", "sslmode=require&sslrootcert=DIR/evil.crt", "certificate", "sslrootcert"),
        ("localhost", "sslrootcert=system", "certificate", "sslrootcert"),
        (
            "127.0.0.1",
            "sslmode=verify-full&sslrootcert=DIR/good.crt",
            "not valid for",
            "subjectAlt",
        ),
        ("127.0.0.1", "sslmode=disable", "no encryption", "sslmode=require"),
    ] {
        let (why, hint) = unable(&secure.url(host, options));
        assert!(why.contains(says), "{options}: {why}");
        assert!(hint.contains(hints), "{options}: {hint}");
    }
}

#[test]
fn a_server_without_tls_is_refused_where_tls_is_demanded() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    joined(&format!("{url}?sslmode=prefer"), "one");
    let (why, hint) = unable(&format!("{url}?sslmode=require"));
    assert!(why.contains("does not offer TLS"), "{why}");
    assert!(hint.contains("ssl = on"), "{hint}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let refused = |options: &str| {
        let url = format!("postgres://a@b/c?{options}");
        postgres::open(fixed(&url), "one").unwrap_err().to_string()
    };
    assert!(refused("sslmode=verify-full&sslrootcert=/nowhere").contains("/nowhere"));
    assert!(refused("sslmode=verify-ca&sslrootcert=system").contains("verify-full"));
    assert!(refused("sslmode=require&sslcert=/nowhere").contains("sslkey"));
    assert!(refused("sslrootcert=/dev/null").contains("PEM"));
}
