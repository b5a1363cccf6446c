-- The tables of the log. (psql replaces :"schema" by the variable of that name, and so does canal.)
--
-- `fillfactor` leaves room for new versions of rows that change all the time, so that they need no
-- new entries in an index.

-- One row: the format and the epoch of the log, the last position, the last incarnation, the
-- position of the snapshot (0: none), and the number and sign of the last era (0: none). `position`
-- is that of the last batch.
CREATE TABLE :"schema".head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL,
    epoch bytea NOT NULL,
    position bigint NOT NULL DEFAULT 0,
    incarnation bigint NOT NULL DEFAULT 0,
    snapshot bigint NOT NULL DEFAULT 0,
    era bigint NOT NULL DEFAULT 0,
    era_sign text NOT NULL DEFAULT ''
) WITH (fillfactor = 10);

-- A row for each incarnation.
CREATE TABLE :"schema".hosts (
    host bigint PRIMARY KEY,
    nonce bytea NOT NULL UNIQUE,
    label text NOT NULL,
    identity text NOT NULL,
    ttl_ms bigint NOT NULL,
    renewals bigint NOT NULL DEFAULT 0,
    sequence bigint NOT NULL DEFAULT 0,
    hash bytea,
    placed bigint,
    ended bigint
) WITH (fillfactor = 40);

-- A row for each batch.
CREATE TABLE :"schema".log (
    position bigint PRIMARY KEY,
    host bigint NOT NULL,
    sequence bigint NOT NULL,
    body bytea NOT NULL,
    UNIQUE (host, sequence)
);

-- A row for each part of the snapshot.
CREATE TABLE :"schema".snapshot (
    position bigint NOT NULL,
    part integer NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (position, part)
);
