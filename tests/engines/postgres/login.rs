//! The clients that the server admits, and the messages for the others.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::events::EngineEvents as _;
use super::{joined, opened, unable};
use crate::postgres_server::{Server, shared, start_postgres};
use crate::world::process::wait_until;

/// A server that asks for passwords, with a user and database `locks` whose password is
/// `pass word`.
fn with_passwords() -> Option<Server> {
    let server = start_postgres()?;
    server.make_database("locks");
    server.sql("ALTER ROLE locks PASSWORD 'pass word'");
    server.hba("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
    Some(server)
}

#[test]
fn passwords_come_from_the_url_or_a_file() {
    let Some(server) = with_passwords() else { return };
    let address = format!("127.0.0.1:{}/locks", server.port);
    joined(&format!("postgres://locks:pass%20word@{address}"), "one");

    let (why, hint) = unable(&format!("postgres://locks:wrong@{address}"));
    assert_eq!(why, "password authentication failed for user \"locks\"");
    assert!(hint.contains("password"), "{hint}");

    let file = server.dir().join("pass");
    fs::write(&file, "*:*:other:*:no\n127.0.0.1:*:locks:locks:pass word\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    joined(&format!("postgres://locks@{address}?passfile={}", file.display()), "two");

    fs::write(&file, "").unwrap();
    let (why, hint) = unable(&format!("postgres://locks@{address}?passfile={}", file.display()));
    assert_eq!(why, "the server asks for a password, and none is set");
    assert!(hint.contains("pgpass"), "{hint}");
}

#[test]
fn a_password_changed_during_a_session_can_be_changed_back() {
    let Some(server) = with_passwords() else { return };
    let mut one =
        joined(&format!("postgres://locks:pass%20word@127.0.0.1:{}/locks", server.port), "one");
    server.sql("ALTER ROLE locks PASSWORD 'another'");
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locks'");
    one.away();
    // At least one attempt fails because of the password.
    wait_until("a refusal", || server.log().contains("authentication failed"));
    server.sql("ALTER ROLE locks PASSWORD 'pass word'");
    one.back();
    assert!(one.renew().is_some());
}

#[test]
fn a_corrected_password_file_is_read_again() {
    let Some(server) = with_passwords() else { return };
    let file = server.dir().join("pass");
    fs::write(&file, "*:*:*:*:wrong\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let address = format!("127.0.0.1:{}/locks", server.port);
    let url = format!("postgres://locks@{address}?passfile={}", file.display());
    let mut one = opened(&url, "one");
    assert!(one.unable().0.contains("password authentication failed"));
    fs::write(&file, "*:*:*:*:pass word\n").unwrap();
    one.back();
    one.register();
}

#[test]
fn a_missing_database_is_named() {
    let Some(server) = shared() else { return };
    let url = server.url("nowhere").replacen("nowhere", crate::postgres_server::ADMIN, 1);
    let (why, hint) = unable(&url);
    assert_eq!(why, "database \"nowhere\" does not exist");
    assert!(hint.contains("createdb"), "{hint}");
}

#[test]
fn a_user_refused_by_pg_hba_is_pointed_to_that_file() {
    let Some(server) = start_postgres() else { return };
    server.make_database("locks");
    server.hba("local all all trust\n");
    let (why, hint) = unable(&server.url("locks"));
    assert!(why.contains("no pg_hba.conf entry"), "{why}");
    assert!(hint.contains("pg_hba.conf"), "{hint}");
}

#[test]
fn the_message_about_a_refused_connection_contains_no_password() {
    let mut one = opened("postgres://locks:secret@127.0.0.1:1/locks", "one");
    let why = one.away();
    assert!(why.contains("refused") && !why.contains("secret"), "{why}");
}

#[test]
fn a_unix_socket_is_accepted() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    let dir = server.dir().display();
    let port = server.port;
    joined(&format!("postgres://{database}@/{database}?host={dir}&port={port}"), "one");
}

#[test]
fn a_missing_role_gets_the_hint_to_create_it() {
    let Some(server) = shared() else { return };
    let url =
        format!("postgres://nobody@127.0.0.1:{}/{}", server.port, crate::postgres_server::ADMIN);
    let (why, hint) = unable(&url);
    assert_eq!(why, "role \"nobody\" does not exist");
    assert!(hint.contains("CREATE ROLE") && !hint.contains("pg_hba"), "{hint}");
}
