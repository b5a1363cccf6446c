//! TLS, with certificates made here.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use crate::etcd_server::{Etcd, installed, start_etcd, start_etcd_tls};
use crate::said::{away, back, joined, peer, unable};

/// An authority and what it has signed.
struct Certificates {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let made = Self { dir: tempfile::tempdir().unwrap(), issuer };
        fs::write(made.file("ca.pem"), made.issuer.pem()).unwrap();
        made
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Signs a certificate for a host or address: it and its key.
    fn sign(&self, host: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let files = (self.file(&format!("{host}.pem")), self.file(&format!("{host}.key")));
        fs::write(&files.0, cert.pem()).unwrap();
        fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }
}

fn at(server: &Etcd, query: &str) -> String {
    format!("etcds://{}/x?{query}", server.endpoint())
}

fn query(authority: &Path) -> String {
    format!("cacert={}", authority.display())
}

#[test]
fn a_server_whose_authority_is_trusted_is_spoken_to() {
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
fn a_server_that_asks_for_a_certificate_is_shown_it() {
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
fn a_server_that_is_not_the_one_that_is_meant_is_refused() {
    if !installed() {
        return;
    }
    let certificates = Certificates::new();
    let (cert, key) = certificates.sign("127.0.0.1");
    let server = start_etcd_tls(&cert, &key, None);
    let stranger = Certificates::new().issuer.pem();
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
fn an_authority_that_is_put_right_is_read_again() {
    if !installed() {
        return;
    }
    let certificates = Certificates::new();
    let (cert, key) = certificates.sign("127.0.0.1");
    let server = start_etcd_tls(&cert, &key, None);
    let file = certificates.file("trusted.pem");
    fs::write(&file, Certificates::new().issuer.pem()).unwrap();
    let mut one = peer(&at(&server, &query(&file)), "one");
    unable(&mut one);
    fs::copy(certificates.file("ca.pem"), &file).unwrap();
    back(&mut one);
    one.register();
}

#[test]
fn tls_and_no_tls_are_told_apart() {
    if !installed() {
        return;
    }
    let certificates = Certificates::new();
    let server = start_etcd();
    let why = away(&mut peer(&at(&server, &query(&certificates.file("ca.pem"))), "one"));
    assert!(why.contains("if it speaks no TLS, write etcd://"), "{why}");
    let (cert, key) = certificates.sign("127.0.0.1");
    let server = start_etcd_tls(&cert, &key, None);
    let why = away(&mut peer(&format!("etcd://{}", server.endpoint()), "one"));
    assert!(why.contains("TLS"), "{why}");
}

#[test]
fn who_resets_the_connection_may_speak_tls_or_none() {
    // Whoever closes with something left to read resets the connection, as a server of TLS may.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(stream.peek(&mut [0])));
    });
    for _ in 0..20 {
        let why = away(&mut peer(&format!("etcd://{at}"), "one"));
        assert!(why.contains("if it speaks TLS, write etcds://"), "{why}");
        let why = away(&mut peer(&format!("etcds://{at}"), "one"));
        assert!(why.contains("if it speaks no TLS, write etcd://"), "{why}");
    }
}
