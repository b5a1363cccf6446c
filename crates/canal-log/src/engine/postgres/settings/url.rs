//! The address of a server: libpq's URLs, as far as canal supports them.
//!
//! Invariant: an unknown option is an error, never ignored, and no error repeats the password.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::{self, IntoDeserializer};
use tokio::time::timeout;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::passfile;
use super::tls;
use crate::engine::Outage;
use crate::engine::postgres::error::{PostgresError, Result};

/// The schema of the tables, unless `canal_schema` names another one.
const SCHEMA: &str = "canal";

/// The server truncates longer names.
const SCHEMA_BYTES_MAX: usize = 63;

/// How long to try to reach one address of the server.
const CONNECT: Duration = Duration::from_secs(5);

/// The idle time before the kernel probes the server, the interval of the probes, and the time
/// limit for unacknowledged data. A server that vanished is noticed in about 10 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// How to reach a server, and which schema to use there.
pub(crate) struct Settings {
    pub config: Config,
    pub tls: MakeRustlsConnect,
    /// The name of the schema, a plain identifier.
    pub schema: String,
    /// Why the usual password file is not used although it exists.
    pub passfile: Option<String>,
}

/// The options that canal interprets itself.
#[derive(Default)]
struct Options {
    schema: Option<String>,
    ssl: tls::Options,
    passfile: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn parse(url: &str, label: &str) -> Result<Self, Outage> {
        Self::read(url, label).map_err(|error| Outage::refused(error.to_string(), None))
    }

    fn read(url: &str, label: &str) -> anyhow::Result<Self> {
        let (options, rest) = split(url)?;
        let mut config: Config = rest.parse().map_err(|error: tokio_postgres::Error| {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            anyhow!("not a PostgreSQL address: {why}")
        })?;
        ensure!(
            !config.get_hosts().is_empty() || !config.get_hostaddrs().is_empty(),
            "the address names no server: postgres://USER@HOST/DATABASE"
        );
        let (mode, tls) = tls::set_up(&options.ssl)?;
        // As in libpq, a socket of this machine has no TLS, regardless of `sslmode`.
        config.ssl_mode(if is_local(&config) { SslMode::Disable } else { mode });
        if config.get_application_name().is_none() {
            config.application_name(format!("canal {label}"));
        }
        // Of several servers, use the one that is not a standby.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.keepalives(true).keepalives_idle(KEEPALIVE_IDLE);
        config.keepalives_interval(KEEPALIVE_INTERVAL).keepalives_retries(KEEPALIVE_RETRIES);
        config.tcp_user_timeout(UNACKNOWLEDGED);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        let passfile = passfile::fill(&mut config, options.passfile)?;
        let schema = schema(options.schema)?;
        Ok(Self { config, tls, schema, passfile })
    }

    /// The database and the schema.
    pub(crate) fn table(&self) -> (Option<String>, String) {
        (self.config.get_dbname().map(str::to_owned), self.schema.clone())
    }

    /// Bounds the work of a connection. An unreachable server may precede a reachable one in the
    /// list.
    pub(crate) async fn in_time<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let hosts = u32::try_from(self.config.get_hosts().len().max(1)).unwrap_or(u32::MAX);
        timeout(patience * hosts, work).await.unwrap_or_else(|_| Err(PostgresError::silent()))
    }
}

/// Whether the address names only sockets of this machine.
pub(crate) fn is_local(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)))
        && config.get_hostaddrs().is_empty()
}

/// Removes canal's own options from `url`.
fn split(url: &str) -> anyhow::Result<(Options, String)> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut options, mut rest) = (Options::default(), Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            bail!("not a PostgreSQL address: option `{pair}` has no value");
        };
        let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
        match name {
            "canal_schema" => options.schema = Some(value),
            "sslmode" => options.ssl.mode = Some(mode(&value)?),
            "sslrootcert" => options.ssl.roots = Some(value.into()),
            "sslcert" => options.ssl.certificate = Some(value.into()),
            "sslkey" => options.ssl.key = Some(value.into()),
            "passfile" => options.passfile = Some(value.into()),
            // canal only ever uses a server that accepts writes.
            "target_session_attrs" => {}
            _ => rest.push(pair),
        }
    }
    Ok((options, format!("{base}?{}", rest.join("&"))))
}

fn mode(value: &str) -> anyhow::Result<tls::Mode> {
    let unknown = |_: de::value::Error| {
        anyhow!("sslmode=`{value}`: use disable, prefer, require, verify-ca or verify-full")
    };
    tls::Mode::deserialize(value.into_deserializer()).map_err(unknown)
}

/// The name is checked strictly enough to be used in a statement without quoting.
fn schema(name: Option<String>) -> anyhow::Result<String> {
    let name = name.unwrap_or_else(|| SCHEMA.to_owned());
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.starts_with("pg_");
    ensure!(
        plain && begins && name.len() <= SCHEMA_BYTES_MAX,
        "canal_schema=`{name}`: a schema name has only lower-case letters, digits and `_`, begins \
         with a letter but not with `pg_`, and has at most 63 characters"
    );
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Settings, Outage> {
        Settings::parse(url, "web")
    }

    fn wrong(url: &str) -> String {
        parse(url).err().unwrap().to_string()
    }

    #[test]
    fn the_settings_are_those_that_libpq_would_read() {
        let settings =
            parse("postgresql://me:a%40b@db.example:6000/locks?connect_timeout=3&canal_schema=x_1")
                .unwrap();
        let config = &settings.config;
        assert_eq!(config.get_user(), Some("me"));
        assert_eq!(config.get_password(), Some("a@b".as_bytes()));
        assert_eq!(config.get_hosts(), [Host::Tcp("db.example".to_owned())]);
        assert_eq!(config.get_ports(), [6000]);
        assert_eq!(config.get_dbname(), Some("locks"));
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(config.get_application_name(), Some("canal web"));
        assert_eq!(config.get_ssl_mode(), SslMode::Prefer);
        assert_eq!(settings.schema, "x_1");
    }

    #[test]
    fn several_servers_can_be_named() {
        let settings = parse("postgres://a,b:6000/db").unwrap();
        assert_eq!(settings.config.get_hosts().len(), 2);
        assert_eq!(settings.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn a_socket_of_this_machine_has_no_tls() {
        let settings = parse("postgres:///db?host=/run/postgresql&sslmode=require").unwrap();
        assert_eq!(settings.config.get_ssl_mode(), SslMode::Disable);
    }

    #[test]
    fn a_schema_that_could_be_more_than_a_name_is_refused() {
        for name in ["", "a%22b", "a;b", "Canal", "1a", "pg_x", "a.b", "ä", &"a".repeat(64)] {
            assert!(
                wrong(&format!("postgres://h/db?canal_schema={name}")).contains("canal_schema")
            );
        }
        assert!(parse(&format!("postgres://h/db?canal_schema={}", "a".repeat(63))).is_ok());
    }

    #[test]
    fn an_unknown_setting_is_an_error() {
        assert!(wrong("postgres://h/db?sslcrl=x").contains("sslcrl"));
        assert!(wrong("postgres://h/db?sslmode=allow").contains("sslmode"));
        assert!(wrong("postgres://h/db?x").contains("`x`"));
        assert!(wrong("postgres://").contains("no server"));
    }

    #[test]
    fn no_error_repeats_the_password() {
        for url in ["postgres://u:geheim@h:x/db", "postgres://u:geheim@h/db?nonsense=1"] {
            let said = wrong(url);
            assert!(!said.contains("geheim"), "{said}");
        }
    }
}
