//! The tables, and how they are created.
//!
//! Invariant: one host creates the tables, all together or not at all. canal never touches tables
//! of another format or of other programs.

use super::era::{Observation, SHOWN, SYSTEM};
use super::error::{PostgresError, Result};
use super::notification::Seal;
use super::session::Session;
use crate::engine::{FORMAT, Outage};

/// The tables.
const TABLES: &str = include_str!("schema.sql");

/// The objects that exist under the name of the schema.
pub(super) struct ExistingTables {
    pub(super) schema: bool,
    pub(super) head: bool,
    pub(super) tables: bool,
    /// Quoted, for hints.
    pub(super) database: String,
    pub(super) user: String,
}

impl Session {
    /// Creates the tables if there are none; fails if the existing ones are not canal's. Also reads
    /// the server's era. If it fails, the session must end, which undoes what was created.
    pub(crate) async fn make_schema(&mut self) -> Result<()> {
        if !self.find().await?.head {
            self.make().await?;
        }
        self.seen = self.check_format().await?;
        let epoch = format!("SELECT epoch FROM \"{}\".head", self.schema);
        let row = self.client.query_typed_one(&epoch, &[]).await?;
        self.seal = Seal::new(row.try_get(0)?, self.seen.table);
        Ok(())
    }

    pub(super) async fn find(&self) -> Result<ExistingTables> {
        // Every user can read the catalogue; functions such as to_regclass() need permissions.
        let query = format!(
            "WITH t AS (SELECT c.relname FROM pg_class c JOIN pg_namespace n \
             ON n.oid = c.relnamespace WHERE n.nspname = '{schema}' \
             AND c.relkind IN ('r', 'p', 'v', 'm', 'f')) \
             SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}'), \
             EXISTS (SELECT FROM t WHERE relname = 'head'), EXISTS (SELECT FROM t), \
             quote_ident(current_database()), quote_ident(current_user)",
            schema = self.schema
        );
        let row = self.client.query_typed_one(&query, &[]).await?;
        Ok(ExistingTables {
            schema: row.try_get(0)?,
            head: row.try_get(1)?,
            tables: row.try_get(2)?,
            database: row.try_get(3)?,
            user: row.try_get(4)?,
        })
    }

    async fn make(&self) -> Result<()> {
        let schema = &self.schema;
        // If several hosts find no tables, one creates them, and the others then find them.
        let begin =
            format!("BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('canal {schema}', 0))");
        self.client.batch_execute(&begin).await?;
        let found = self.find().await?;
        if found.head {
            self.client.batch_execute("COMMIT").await?;
            return Ok(());
        }
        if found.tables {
            return Err(foreign(schema));
        }
        let denied = |error, hint: &str| match PostgresError::is_denied(&error) {
            true => PostgresError::refused(Outage::from(PostgresError::from(error)).why, hint),
            false => PostgresError::from(error),
        };
        if !found.schema {
            let create = format!("CREATE SCHEMA \"{schema}\"");
            let hint = format!("GRANT CREATE ON DATABASE {} TO {}", found.database, found.user);
            self.client.batch_execute(&create).await.map_err(|error| denied(error, &hint))?;
        }
        let hint = format!("GRANT USAGE, CREATE ON SCHEMA \"{schema}\" TO {}", found.user);
        let tables = TABLES.replace(":\"schema\"", &format!("\"{schema}\""));
        self.client.batch_execute(&tables).await.map_err(|error| denied(error, &hint))?;
        let epoch = &self.proof;
        let head = format!(
            "INSERT INTO \"{schema}\".head (format, epoch) VALUES ({FORMAT}, '\\x{epoch}'); COMMIT"
        );
        self.client.batch_execute(&head).await?;
        tracing::info!("created the tables of a new log in schema {schema}");
        Ok(())
    }

    /// Checks that the tables are canal's, and reads the era that they and the server show.
    pub(super) async fn check_format(&self) -> Result<Observation> {
        let schema = &self.schema;
        let shown = SHOWN.replace("{system}", if self.tells_system { SYSTEM } else { "''" });
        let query = format!("SELECT format, {shown} FROM \"{schema}\".head");
        let rows = match self.client.query_typed(&query, &[]).await {
            Ok(rows) => rows,
            Err(error) if PostgresError::is_denied(&error) => {
                return Err(PostgresError::refused(
                    format!("the tables in schema {schema} belong to another user of the database"),
                    "let all hosts log in as the user that created them",
                ));
            }
            Err(error) if error.as_db_error().is_some_and(|said| said.code().code() == "42703") => {
                return Err(foreign(schema));
            }
            Err(error) => return Err(error.into()),
        };
        let [row] = rows.as_slice() else { return Err(foreign(schema)) };
        let format: i32 = row.try_get(0).map_err(|_| foreign(schema))?;
        if i64::from(format) == i64::from(FORMAT) {
            return Observation::of(row, 1);
        }
        Err(PostgresError::refused(
            format!("the log there has format {format}, but this canal needs format {FORMAT}"),
            "run the same version of canal on all hosts",
        ))
    }
}

pub(super) fn foreign(schema: &str) -> PostgresError {
    PostgresError::refused(
        format!("schema {schema} has tables that do not belong to canal"),
        "name another schema in the URL: canal_schema=NAME",
    )
}
