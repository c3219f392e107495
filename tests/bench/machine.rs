//! What the figures were measured on.

use paylatch_tests::Database;
use serde::Serialize;

/// The machine and the server, as far as they bear on the figures.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Processors.
    pub cores: usize,
    /// The processor's name, as the kernel tells it.
    pub processor: String,
    /// PostgreSQL's version.
    pub postgres: String,
    /// Settings that decide what a commit means.
    pub durability: String,
}

/// Looks at the machine and the server; refuses one that is not durable.
pub async fn describe(db: &Database) -> Machine {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let lax: Vec<String> = sqlx::query_scalar(
        "select name from pg_settings where name in ('fsync', 'synchronous_commit', 'full_page_writes') and setting <> 'on'",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert!(lax.is_empty(), "figures of a cluster that may lose payments say nothing: {lax:?} is not on");
    let processor = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    Machine {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        processor: processor.trim_start_matches(['\t', ':', ' ']).to_owned(),
        postgres: db.value("show server_version").await,
        durability: db
            .value(
                "select string_agg(name || '=' || setting, ', ' order by name) from pg_settings
                 where name in ('fsync', 'synchronous_commit', 'full_page_writes')",
            )
            .await,
    }
}
