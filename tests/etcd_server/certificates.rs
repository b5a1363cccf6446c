//! Certificates for servers that speak TLS.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority and what it has signed.
pub(crate) struct Certificates {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let made = Self { dir: tempfile::tempdir().unwrap(), issuer };
        fs::write(made.file("ca.pem"), made.issuer.pem()).unwrap();
        made
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Signs a certificate for a host or address: it and its key.
    pub(crate) fn sign(&self, host: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let files = (self.file(&format!("{host}.pem")), self.file(&format!("{host}.key")));
        fs::write(&files.0, cert.pem()).unwrap();
        fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }

    /// The certificate of the authority, in PEM.
    pub(crate) fn authority(&self) -> String {
        self.issuer.pem()
    }
}
