//! Inspects a server that no daemon uses yet.
//!
//! Invariant: nothing is changed. The session is read-only, so the server itself refuses changes.

use tokio_postgres::config::Host;

use super::error::{PostgresError, Result};
use super::schema::{ExistingTables, foreign};
use super::session::{NO_FSYNC, PATIENCE, Session};
use super::settings::url::{Settings, is_local};
use crate::engine::{Inspection, Outage, ServerClock, TableSize, Transport};
use canal_sys::clock;

/// The query for the server's own properties, and those of this session.
const SERVER: &str = "SELECT current_setting('server_version'), current_user, \
    (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), current_setting('fsync'), \
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The rights to the tables that a daemon needs.
const PRIVILEGES: &str = "('head', 'SELECT'), ('head', 'UPDATE'), ('hosts', 'SELECT'), \
    ('hosts', 'INSERT'), ('hosts', 'UPDATE'), ('hosts', 'DELETE'), ('log', 'SELECT'), \
    ('log', 'INSERT'), ('log', 'DELETE'), ('snapshot', 'SELECT'), ('snapshot', 'INSERT'), \
    ('snapshot', 'DELETE')";

impl Session {
    /// Inspects a server, and the table that is kept there.
    pub(crate) async fn inspect(settings: &Settings) -> Inspection {
        let hosts = settings.config.get_hosts();
        let names = hosts.iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(dir) => dir.display().to_string(),
        });
        let name = names.collect::<Vec<_>>().join(",");
        let is_local = is_local(&settings.config);
        let looked = async {
            let session = Self::log_in(settings).await?;
            session.client.batch_execute("SET default_transaction_read_only = on").await?;
            session.look(&name, is_local).await
        };
        settings.in_time(PATIENCE, looked).await.unwrap_or_else(|error| Inspection {
            servers: vec![(name.clone(), Err(error.into()))],
            ..Inspection::default()
        })
    }

    async fn look(&self, name: &str, is_local: bool) -> Result<Inspection> {
        let before = clock::unix_ms();
        let row = self.row(SERVER).await?;
        let after = clock::unix_ms();
        // Some systems append the version of their package.
        let version = row.text(0).split(' ').next().unwrap_or_default();
        let transport = match row.text(2) {
            "t" => Transport::Encrypted,
            _ if is_local => Transport::Local,
            _ => Transport::Plain,
        };
        let mut seen = Inspection {
            servers: vec![(name.to_owned(), Ok(format!("PostgreSQL {version}")))],
            transport,
            user: Some(row.text(1).to_owned()),
            clock: row.number(4).map(|theirs| ServerClock::read(before, theirs, after)),
            ..Inspection::default()
        };
        if row.text(3) == "off" {
            seen.remarks.push((NO_FSYNC.to_owned(), "set `fsync = on` on the server"));
        }
        let found = self.find().await?;
        seen.obstacles.extend(self.obstacle(&found).await?);
        if !found.head || !seen.obstacles.is_empty() {
            return Ok(seen);
        }
        match self.check_format().await {
            Ok(_) => {
                seen.table = Some(self.size().await?);
                seen.hosts = self.hosts().await?;
            }
            Err(error) if error.is_refusal() => seen.obstacles.push(error.into()),
            Err(other) => return Err(other),
        }
        Ok(seen)
    }

    /// The reason why a daemon that logs in as this user cannot use or create the tables.
    async fn obstacle(&self, found: &ExistingTables) -> Result<Option<Outage>> {
        let (schema, ExistingTables { database, user, .. }) = (&self.schema, found);
        let refused = |why: String, hint: &str| PostgresError::refused(why, hint).into();
        if found.head {
            let missing = self.missing_privileges().await?;
            let why =
                format!("{user} may not use the tables in schema {schema}: {missing} is missing");
            let hint = "let all hosts log in as the user that created them";
            return Ok((!missing.is_empty()).then(|| refused(why, hint)));
        }
        if found.tables {
            return Ok(Some(foreign(schema).into()));
        }
        let (question, why, hint) = if found.schema {
            (
                format!(
                    "SELECT has_schema_privilege('{schema}', 'USAGE') \
                     AND has_schema_privilege('{schema}', 'CREATE')"
                ),
                format!("{user} may not create tables in schema {schema}"),
                format!("GRANT USAGE, CREATE ON SCHEMA \"{schema}\" TO {user}"),
            )
        } else {
            (
                "SELECT has_database_privilege(current_database(), 'CREATE')".to_owned(),
                format!("{user} may not create the schema {schema} in database {database}"),
                format!("GRANT CREATE ON DATABASE {database} TO {user}"),
            )
        };
        let may = self.row(&question).await?.text(0) == "t";
        Ok((!may).then(|| refused(why, &hint)))
    }

    /// The rights to the schema and tables that this user lacks, as text: `USAGE, UPDATE on head`.
    async fn missing_privileges(&self) -> Result<String> {
        let schema = &self.schema;
        let query = format!(
            "SELECT string_agg(t.what, ', ') FROM ( \
             SELECT 'USAGE' AS what WHERE NOT has_schema_privilege('{schema}', 'USAGE') \
             UNION ALL SELECT w.privilege || ' on ' || w.name \
             FROM (VALUES {PRIVILEGES}) AS w(name, privilege) \
             JOIN pg_class c ON c.relname = w.name \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = '{schema}' AND NOT has_table_privilege(c.oid, w.privilege)) AS t"
        );
        Ok(self.row(&query).await?.text(0).to_owned())
    }

    async fn size(&self) -> Result<TableSize> {
        let schema = &self.schema;
        let query = format!(
            "SELECT (SELECT count(*) FROM \"{schema}\".log), \
             (SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = '{schema}' AND c.relkind = 'r')"
        );
        let row = self.row(&query).await?;
        let number = |column| row.number(column).unwrap_or(0);
        Ok(TableSize { batches: number(0), bytes: number(1), of_server: false })
    }
}
