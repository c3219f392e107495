//! A database of its own for every test: a clone of one template, which `paylatchd migrate` built for real.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, Row};

use crate::Cluster;
use crate::cluster::pg_config;
use crate::process::paylatchd;

/// The group roles that migrations create; `test_<role>` is a login role in each of them.
pub const ROLES: &[&str] = &["app", "driver", "operator", "approver", "auditor"];

/// A migrated, armed database that is dropped at the end of its test.
pub struct Database {
    url: String,
    maintenance_url: String,
    name: String,
    pool: PgPool,
    disposable: bool,
}

impl Database {
    /// A clone of the template in the shared cluster.
    pub async fn fresh() -> Self {
        Self::clone_in(&Cluster::shared()).await
    }

    /// A clone of the template in `cluster`.
    pub async fn clone_in(cluster: &Cluster) -> Self {
        let db = Self::create_in(cluster, Some(&template(cluster).await)).await;
        // A copy hands out no action until somebody takes responsibility for it.
        db.execute("select paylatch.arm('a database of a test')").await;
        db
    }

    /// A database without anything of ours in it.
    pub async fn empty() -> Self {
        Self::create_in(&Cluster::shared(), None).await
    }

    /// The one database of a private cluster in which pg_cron runs, migrated in place.
    pub async fn with_cron(cluster: &Cluster) -> Self {
        let db = Self::open(cluster, "paylatch", false).await;
        migrate(&db.url);
        create_logins(&db.pool).await;
        db
    }

    async fn create_in(cluster: &Cluster, template: Option<&str>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut admin = connect(&cluster.url("postgres")).await;
        let template = template.unwrap_or("template0");
        run(&mut admin, &format!("create database {name} template {template}")).await;
        Self::open(cluster, &name, true).await
    }

    async fn open(cluster: &Cluster, name: &str, disposable: bool) -> Self {
        let url = cluster.url(name);
        let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.expect("connect to the test database");
        Self { url, maintenance_url: cluster.url("postgres"), name: name.to_owned(), pool, disposable }
    }

    /// The superuser's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the login role `test_<role>`, a member of `paylatch_<role>` and of nothing else.
    pub fn url_as(&self, role: &str) -> String {
        self.url.replacen("postgres@", &format!("test_{role}@"), 1)
    }

    /// Its name in its cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The superuser's connections.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A superuser's session, for what one session must see or set.
    pub async fn session(&self) -> PgConnection {
        connect(&self.url).await
    }

    /// A session of `test_<role>`.
    pub async fn session_as(&self, role: &str) -> PgConnection {
        connect(&self.url_as(role)).await
    }

    /// Runs statements as superuser; they must succeed.
    pub async fn execute(&self, sql: &str) {
        run(&self.pool, sql).await;
    }

    /// Runs statements as superuser; they must fail. Returns SQLSTATE and message.
    pub async fn refused(&self, sql: &str) -> (String, String) {
        refused(&mut self.session().await, sql).await
    }

    /// The only row of a query.
    pub async fn row(&self, sql: &str) -> PgRow {
        let query = sqlx::query(AssertSqlSafe(sql.to_owned()));
        query.fetch_one(&self.pool).await.unwrap_or_else(|e| panic!("{sql}\n{e}"))
    }

    /// The only value of a query's only row.
    pub async fn value<T>(&self, sql: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        self.row(sql).await.try_get(0).unwrap_or_else(|e| panic!("{sql}\n{e}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.disposable {
            return;
        }
        let (url, sql) = (self.maintenance_url.clone(), format!("drop database {} with (force)", self.name));
        // Neither may block inside the test's runtime, nor does a failure here tell anything about the test.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&url).await?;
                admin.execute(AssertSqlSafe(sql)).await
            })
        });
        if let Ok(Err(e)) = dropper.join() {
            eprintln!("{} stays behind: {e}", self.name);
        }
    }
}

/// Opens a session; it must succeed.
pub async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap_or_else(|e| panic!("{url}: {e}"))
}

/// Runs statements that must succeed.
pub async fn run<'c>(session: impl Executor<'c, Database = sqlx::Postgres>, sql: &str) {
    let statements = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    statements.execute(session).await.unwrap_or_else(|e| panic!("{sql}\n{e}"));
}

/// Runs statements that must fail. Returns SQLSTATE and message.
pub async fn refused<'c>(session: impl Executor<'c, Database = sqlx::Postgres>, sql: &str) -> (String, String) {
    match sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await {
        Ok(done) => panic!("accepted, {} rows: {sql}", done.rows_affected()),
        Err(sqlx::Error::Database(e)) => (e.code().unwrap_or_default().into_owned(), e.message().to_owned()),
        Err(e) => panic!("{sql}\n{e}"),
    }
}

/// Runs `paylatchd migrate`; it must succeed.
pub fn migrate(url: &str) {
    crate::cluster::output(Command::new(paylatchd()).arg("migrate").env("PAYLATCH_DATABASE_URL", url));
}

/// The name of the cluster's migrated template, which the first test to ask for it builds.
async fn template(cluster: &Cluster) -> String {
    let name = format!("template_{:016x}", fingerprint());
    let mut admin = connect(&cluster.url("postgres")).await;
    run(&mut admin, "select pg_advisory_lock(hashtext('paylatch template'))").await;
    let found = sqlx::query("select from pg_database where datname = $1").bind(&name).fetch_optional(&mut admin).await;
    if found.expect("list databases").is_none() {
        run(&mut admin, "drop database if exists template_unfinished").await;
        run(&mut admin, "create database template_unfinished template template0").await;
        let url = cluster.url("template_unfinished");
        migrate(&url);
        create_logins(&mut connect(&url).await).await;
        run(&mut admin, &format!("alter database template_unfinished rename to {name}")).await;
        run(&mut admin, &format!("alter database {name} allow_connections false")).await;
    }
    name
}

/// Changes whenever the daemon (and the migrations in it) or the installed extension does, so that a cluster that
/// was kept between runs serves no stale template.
fn fingerprint() -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut files = vec![paylatchd(), Path::new(&pg_config("--pkglibdir")).join("paylatch.so")];
    let scripts = Path::new(&pg_config("--sharedir")).join("extension");
    files.extend(std::fs::read_dir(scripts).expect("the extension folder").flatten().map(|entry| entry.path()));
    files.sort();
    for file in files.iter().filter(|file| file.to_string_lossy().contains("paylatch")) {
        let meta = std::fs::metadata(file).unwrap_or_else(|e| panic!("{}: {e}; run `make extension`", file.display()));
        (file, meta.len(), meta.modified().ok()).hash(&mut hasher);
    }
    hasher.finish()
}

async fn create_logins<'c>(session: impl Executor<'c, Database = sqlx::Postgres>) {
    let mut sql = String::new();
    for role in ROLES {
        // Roles belong to the cluster: another database of it may have made them.
        sql +=
            &format!("do $$ begin create role test_{role} login; exception when duplicate_object then null; end $$;");
        sql += &format!("grant paylatch_{role} to test_{role};");
    }
    sql += "do $$ begin create role test_nobody login; exception when duplicate_object then null; end $$;";
    run(session, &sql).await;
}
