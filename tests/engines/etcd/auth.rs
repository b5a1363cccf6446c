//! Users and passwords.

use std::time::{Duration, Instant};

use super::conditions::{append_at_last, back, joined, nothing_comes, peer, read_on, unable};
use crate::engine_contract::peer::Peer;
use crate::etcd_server::{Etcd, installed, start_etcd_with};

/// The lifetime of an unused token, in seconds.
const TOKEN_S: u64 = 1;

fn guarded() -> Etcd {
    let mut server = start_etcd_with(&["--auth-token-ttl=1", "--bcrypt-cost=4"]);
    assert_eq!(TOKEN_S, 1);
    for args in [
        &["user", "add", "root:r"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "ci:s3c/ret"],
        &["role", "add", "canal"],
        &["role", "grant-permission", "canal", "--prefix=true", "readwrite", "/canal/"],
        &["user", "grant-role", "ci", "canal"],
        &["user", "add", "nobody:n"],
        &["auth", "enable"],
    ] {
        server.ctl_ok(args);
    }
    server.ctl = vec!["--user=root:r".to_owned()];
    server
}

#[test]
fn a_user_with_the_role_for_the_prefix_can_do_all_that_is_needed() {
    if !installed() {
        return;
    }
    let server = guarded();
    let address = format!("etcd://ci:s3c%2Fret@{}", server.endpoint());
    let mut one = joined(&address, "one");
    let mut two = joined(&address, "two");
    let last = one.append(b"a");
    two.read_to(last);
    assert_eq!(one.renew().unwrap().1.len(), 2);
    two.store(last, b"table");
    two.end(one.host, canal::log::engine::Evidence::Own);
}

#[test]
fn an_expired_token_is_renewed_silently() {
    if !installed() {
        return;
    }
    let server = guarded();
    let address = format!("etcd://ci:s3c%2Fret@{}", server.endpoint());
    let mut one = joined(&address, "one");
    let begun = Instant::now();
    for n in 0..3 {
        // Using a token prolongs it. So a test cannot check whether it has expired, and has to
        // wait.
        std::thread::sleep(Duration::from_millis(1000 * TOKEN_S + 1500));
        if n == 0 {
            one.append(b"a");
        } else if n == 1 {
            one.load();
        } else {
            assert!(one.renew().is_some());
        }
    }
    assert!(begun.elapsed() > Duration::from_secs(3 * TOKEN_S));
    // Any change of the users invalidates all tokens.
    server.ctl_ok(&["user", "add", "another:a"]);
    let last = append_at_last(&mut one, b"b");
    one.read_to(last);
    nothing_comes(&mut one);
}

#[test]
fn a_user_without_permission_gets_the_reason() {
    if !installed() {
        return;
    }
    let server = guarded();
    let at = server.endpoint();
    let said = |address: String| {
        let (why, hint) = unable(&mut peer(&address, "one"));
        assert!(!format!("{why}{hint}").contains("ret"), "{why}; {hint}");
        why
    };
    assert_eq!(said(format!("etcd://{at}")), "etcd requires a user and a password");
    let wrong = "etcd refuses the user or the password";
    assert_eq!(said(format!("etcd://ci:wrongret@{at}")), wrong);
    assert_eq!(said(format!("etcd://who:wrongret@{at}")), wrong);
    let forbidden = "the user may not read and write below the prefix in etcd";
    assert_eq!(said(format!("etcd://nobody:n@{at}")), forbidden);
    assert_eq!(said(format!("etcd://ci:s3c%2Fret@{at}/elsewhere")), forbidden);
}

#[test]
fn a_changed_password_is_read_again_without_a_restart() {
    if !installed() {
        return;
    }
    let server = guarded();
    let address = |password: &str| format!("etcd://ci:{password}@{}", server.endpoint());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), address("s3c%2Fret")).unwrap();
    let path = file.path().to_owned();
    let source = Box::new(move || std::fs::read_to_string(&path).unwrap());
    let mut one = Peer::with(Box::new(canal::log::engine::etcd::open(source).unwrap()), "one");
    one.register();
    one.load();
    one.append(b"a");
    for args in [
        &["user", "delete", "ci"][..],
        &["user", "add", "ci:another"],
        &["user", "grant-role", "ci", "canal"],
    ] {
        server.ctl_ok(args);
    }
    one.call(canal::log::engine::Call::Renew { host: one.host, asked_at: 1 });
    assert_eq!(unable(&mut one).0, "etcd refuses the user or the password");
    std::fs::write(file.path(), address("another")).unwrap();
    back(&mut one);
    assert!(one.renew().is_some(), "it is the same incarnation");
    read_on(&mut one);
    let last = append_at_last(&mut one, b"b");
    one.read_to(last);
}

#[test]
fn a_needless_password_does_no_harm() {
    let Some(log) = crate::engines::etcd::prefix() else { return };
    let address = format!("etcd://ci:x@{}/test{}", log.server.endpoint(), log.number);
    joined(&address, "one").append(b"a");
}
