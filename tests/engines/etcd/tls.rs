//! TLS, with certificates made for each test.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use super::conditions::{away, back, joined, peer, unable};
use crate::etcd_server::certificates::Certificates;
use crate::etcd_server::{Etcd, installed, start_etcd, start_etcd_tls};

fn at(server: &Etcd, query: &str) -> String {
    format!("etcds://{}/x?{query}", server.endpoint())
}

fn query(authority: &Path) -> String {
    format!("cacert={}", authority.display())
}

#[test]
fn a_server_with_a_trusted_authority_is_accepted() {
    if !installed() {
        return;
    }
    let certificates = Certificates::new();
    let (cert, key) = certificates.sign("127.0.0.1");
    let server = start_etcd_tls(&cert, &key, None);
    let address = at(&server, &query(&certificates.file("ca.pem")));
    let mut one = joined(&address, "one");
    let mut two = joined(&address, "two");
    let last = one.append(b"a");
    two.read_to(last);
}

#[test]
fn a_server_that_asks_for_a_certificate_gets_it() {
    if !installed() {
        return;
    }
    let certificates = Certificates::new();
    let (cert, key) = certificates.sign("127.0.0.1");
    let authority = certificates.file("ca.pem");
    let server = start_etcd_tls(&cert, &key, Some(&authority));
    let (cert, key) = certificates.sign("canal");
    let shown = format!("&cert={}&key={}", cert.display(), key.display());
    joined(&at(&server, &(query(&authority) + &shown)), "one").append(b"a");
    let (why, hint) = unable(&mut peer(&at(&server, &query(&authority)), "two"));
    assert!(why.contains("trust") && hint.contains("cert="), "{why}; {hint}");
}

#[test]
fn a_server_with_another_name_is_refused() {
    if !installed() {
        return;
    }
    let certificates = Certificates::new();
    let (cert, key) = certificates.sign("127.0.0.1");
    let server = start_etcd_tls(&cert, &key, None);
    let stranger = Certificates::new().authority();
    fs::write(certificates.file("stranger.pem"), stranger).unwrap();
    let stranger = query(&certificates.file("stranger.pem"));
    let (why, hint) = unable(&mut peer(&at(&server, &stranger), "one"));
    assert!(why.contains("certificate") && hint.contains("cacert="), "{why}; {hint}");
    let (cert, key) = certificates.sign("elsewhere.example");
    let server = start_etcd_tls(&cert, &key, None);
    let (why, _) = unable(&mut peer(&at(&server, &query(&certificates.file("ca.pem"))), "one"));
    assert!(why.contains("not valid for"), "{why}");
}

#[test]
fn a_corrected_authority_is_read_again() {
    if !installed() {
        return;
    }
    let certificates = Certificates::new();
    let (cert, key) = certificates.sign("127.0.0.1");
    let server = start_etcd_tls(&cert, &key, None);
    let file = certificates.file("trusted.pem");
    fs::write(&file, Certificates::new().authority()).unwrap();
    let mut one = peer(&at(&server, &query(&file)), "one");
    unable(&mut one);
    fs::copy(certificates.file("ca.pem"), &file).unwrap();
    back(&mut one);
    one.register();
}

#[test]
fn tls_and_no_tls_are_distinguished() {
    if !installed() {
        return;
    }
    let certificates = Certificates::new();
    let server = start_etcd();
    let why = away(&mut peer(&at(&server, &query(&certificates.file("ca.pem"))), "one"));
    assert!(why.contains("if it does not use TLS, write etcd://"), "{why}");
    let (cert, key) = certificates.sign("127.0.0.1");
    let server = start_etcd_tls(&cert, &key, None);
    let why = away(&mut peer(&format!("etcd://{}", server.endpoint()), "one"));
    assert!(why.contains("TLS"), "{why}");
}

#[test]
fn a_server_that_resets_the_connection_may_or_may_not_use_tls() {
    // A server that closes a connection with unread data resets it, as a TLS server may.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(stream.peek(&mut [0])));
    });
    for _ in 0..20 {
        let why = away(&mut peer(&format!("etcd://{at}"), "one"));
        assert!(why.contains("if it uses TLS, write etcds://"), "{why}");
        let why = away(&mut peer(&format!("etcds://{at}"), "one"));
        assert!(why.contains("if it does not use TLS, write etcd://"), "{why}");
    }
}
