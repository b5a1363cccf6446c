//! TLS with libpq's semantics: the guarantees of `sslmode` and `sslrootcert`.
//!
//! Invariant: nothing here is weaker than libpq with the same options. It is stricter in one case:
//! `prefer` continues without TLS only if the server offers none, not if the handshake fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, bail, ensure};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use serde::Deserialize;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::passfile::home;

/// The value of `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// No TLS.
    Disable,
    /// TLS if the server offers it, with any server.
    Prefer,
    /// TLS with any server; like `VerifyCa` if authorities are named.
    Require,
    /// TLS with a server whose certificate an authority has signed.
    VerifyCa,
    /// TLS with a server whose certificate an authority has signed, with the requested name in it.
    VerifyFull,
}

/// The TLS options of the address.
#[derive(Default)]
pub(crate) struct Options {
    pub mode: Option<Mode>,
    /// A file, or `system`.
    pub roots: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// Sets up TLS.
pub(crate) fn set_up(options: &Options) -> anyhow::Result<(SslMode, MakeRustlsConnect)> {
    let system = options.roots.as_deref() == Some(Path::new("system"));
    let mode = options.mode.unwrap_or(if system { Mode::VerifyFull } else { Mode::Prefer });
    // Authorities that sign for everyone prove nothing unless the name is checked.
    ensure!(!system || mode == Mode::VerifyFull, "sslrootcert=system needs sslmode=verify-full");
    let refused = |why: Error| anyhow!("cannot set up TLS: {why}");
    let provider = Arc::new(ring::default_provider());
    let verifier = verifier(mode, roots(options, system)?, &provider)?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(unreadable("the key", key))?;
            config.with_client_auth_cert(certificates(certificate)?, key).map_err(refused)?
        }
        (None, None) => config.with_no_client_auth(),
        _ => bail!("sslcert and sslkey must be given together"),
    };
    let mode = match mode {
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
    };
    Ok((mode, MakeRustlsConnect::new(config)))
}

/// The trusted authorities, if any are named. As in libpq, `~/.postgresql/root.crt` names some in
/// every mode.
fn roots(options: &Options, system: bool) -> anyhow::Result<Option<RootCertStore>> {
    if options.mode == Some(Mode::Disable) {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    if system {
        let found = rustls_native_certs::load_native_certs();
        let (usable, _) = roots.add_parsable_certificates(found.certs);
        let why = found.errors.first().map(|why| format!(": {why}")).unwrap_or_default();
        ensure!(usable > 0, "sslrootcert=system: this machine has no CA certificates{why}");
        return Ok(Some(roots));
    }
    let usual =
        || home().map(|home| home.join(".postgresql/root.crt")).filter(|path| path.exists());
    let Some(path) = options.roots.clone().or_else(usual) else { return Ok(None) };
    for certificate in certificates(&path)? {
        roots
            .add(certificate)
            .map_err(|why| anyhow!("cannot read the CA certificates {}: {why}", path.display()))?;
    }
    Ok(Some(roots))
}

fn verifier(
    mode: Mode,
    roots: Option<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> anyhow::Result<Arc<dyn ServerCertVerifier>> {
    let Some(roots) = roots else {
        ensure!(
            !matches!(mode, Mode::VerifyCa | Mode::VerifyFull),
            "sslmode=verify-ca and verify-full need the certificate authority of the server: \
             sslrootcert=FILE, or sslrootcert=system with verify-full"
        );
        return Ok(Arc::new(Lenient { provider: Arc::clone(provider), signed: None }));
    };
    let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|why| anyhow!("cannot set up TLS: {why}"))?;
    Ok(if mode == Mode::VerifyFull {
        strict
    } else {
        Arc::new(Lenient { provider: Arc::clone(provider), signed: Some(strict) })
    })
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    // A file without certificates is useless, too.
    let read = read
        .and_then(|read| if read.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(read) });
    read.map_err(unreadable("certificates in", path))
}

/// The error for a file that should contain `what`.
fn unreadable(what: &str, path: &Path) -> impl FnOnce(pem::Error) -> anyhow::Error {
    move |why| {
        let why = match why {
            pem::Error::Io(why) => why.to_string(),
            pem::Error::NoItemsFound => "there is none in PEM format".to_owned(),
            other => other.to_string(),
        };
        anyhow!("cannot read {what} {}: {why}", path.display())
    }
}

/// Accepts certificates that a browser would refuse, but only from a server that has their key.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    /// Verifies the signer and ignores the name in the certificate; any signer is accepted if
    /// `None`.
    signed: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(signed) = &self.signed else { return Ok(ServerCertVerified::assertion()) };
        match signed.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // The verifier checks the name last, after the signature.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
