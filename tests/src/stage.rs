//! A whole stage for one fault: a database with impatient scenes, a simulator, and daemons between the two.
//!
//! Everything on it is real: the daemon and the simulator are processes, and they talk over loopback. Only the spans
//! are short, so that a lease or a deadline ends within seconds.

use std::collections::HashMap;
use std::time::Duration;

use paylatchd::simulate::{Effects, Rule};
use sqlx::PgConnection;

use crate::daemon::Setup;
use crate::invariants::assert_never_rules;
use crate::payments::Flow;
use crate::wait::eventually;
use crate::{Daemon, Database, Simulator};

/// How long a flow may take to end on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The lease of the stage's daemons: three seconds, which every lease has for connecting, and the longest call.
pub const LEASE_MS: i64 = 4000;

/// Scenes over HTTP, without business and in SQL, all on channel `sim`. The breaker is out of the way.
const SCENES: &str = "
    create schema app;
    grant usage on schema app to public;
    create table app.streak (biz_key text primary key, owner text not null, done_count integer not null default 1);
    create function app.streak_execute(order_no text, biz_key text, valid_until timestamptz, payload jsonb)
        returns void language plpgsql security definer as $$
    begin
        insert into app.streak as s (biz_key, owner)
        select streak_execute.biz_key, order_no where paylatch.clock() <= valid_until
        on conflict on constraint streak_pkey do nothing;
    end $$;
    create function app.streak_fact(biz_key text, order_no text, out fact text, out owner text)
        language sql security definer as $$
        select case when s.owner is null then 'NOT_DONE' else 'DONE' end, s.owner
        from (select 1) one left join app.streak s on s.biz_key = streak_fact.biz_key
    $$;
    insert into paylatch.channel (channel, call_timeout_ms, breaker_threshold, ramp_ms)
    values ('sim', 1000, 1000000, 0);
    insert into paylatch.scene (scene, channel, order_prefix, business_mode, business_target, business_timeout_ms,
                                biz_grace_ms, retry_base_ms, retry_max_ms, max_auto_retries, slow_interval_ms)
    values ('shop', 'sim', 'sh', 'http', 'shop', 1000, 1500, 50, 400, 1000, 400),
           ('topup', 'sim', 'tp', 'none', null, 1000, 1500, 50, 400, 1000, 400),
           ('streak', 'sim', 'h2r', 'sql', 'app.streak', 1000, 1500, 50, 400, 1000, 400);";

/// The database and the simulator.
pub struct Stage {
    /// The simulator.
    pub sim: Simulator,
    /// The database, with scenes `shop`, `topup` and `streak`.
    pub db: Database,
}

impl Stage {
    /// Without random faults.
    pub async fn set() -> Self {
        Self::with(Database::fresh().await, Simulator::start().await).await
    }

    /// With this database and simulator.
    pub async fn with(db: Database, sim: Simulator) -> Self {
        db.execute(SCENES).await;
        Self { sim, db }
    }

    /// A daemon that is not started yet.
    pub fn setup(&self) -> Setup {
        self.setup_calling_for(1000)
    }

    /// The same, with calls that may take so long.
    pub fn setup_calling_for(&self, call_timeout_ms: u32) -> Setup {
        let timeouts = format!("connect_timeout_ms = 300\ncall_timeout_ms = {call_timeout_ms}");
        Setup::of(&self.db)
            .driver(&format!("lease_ms = {LEASE_MS}"))
            .wallet("sim", &self.sim.base_url(), &timeouts)
            .business("shop", &self.sim.base_url(), &timeouts)
    }

    /// A running daemon.
    pub async fn daemon(&self) -> Daemon {
        self.setup().start().await
    }

    /// Adds a scripted fault.
    pub async fn script(&self, rule: Rule) {
        self.sim.admin().script(rule).await.expect("the simulator takes the rule");
    }

    /// Forgets all scripted faults.
    pub async fn clear_script(&self) {
        self.sim.admin().clear_script().await.expect("the simulator forgets its script");
    }

    /// A new flow for `biz_key`, which is also its user.
    pub async fn create(&self, scene: &str, biz_key: &str) -> i64 {
        self.db.create_flow(scene, biz_key, biz_key).await
    }

    /// A new flow whose business may begin for `deadline_ms` from now.
    pub async fn create_until(&self, scene: &str, biz_key: &str, deadline_ms: i32) -> i64 {
        let create = "select flow_id from paylatch.create_pay_flow($1, $2, $2, 1500, 'USD',
                          biz_deadline => paylatch.clock() + make_interval(secs => $3::float8 / 1000))";
        let flow = sqlx::query_scalar(create).bind(scene).bind(biz_key).bind(f64::from(deadline_ms));
        flow.fetch_one(self.db.pool()).await.unwrap_or_else(|e| panic!("create {biz_key}: {e}"))
    }

    /// `count` new flows, with keys `scene-1` and so on.
    pub async fn create_many(&self, scene: &str, count: i32) -> Vec<i64> {
        let create = "select flow_id from paylatch.create_pay_flows((
                          select jsonb_agg(jsonb_build_object('scene', $1, 'user_id', n, 'biz_key', $1 || '-' || n,
                                                              'amount', 100 + n, 'currency', 'USD') order by n)
                          from generate_series(1, $2) n))";
        let flows = sqlx::query_scalar(create).bind(scene).bind(count).fetch_all(self.db.pool()).await;
        flows.unwrap_or_else(|e| panic!("create {count} flows of {scene}: {e}"))
    }

    /// Waits until the flow is at `status`; panics at once if it ends elsewhere.
    pub async fn reaches(&self, flow_id: i64, status: &str) -> Flow {
        eventually(&format!("flow {flow_id} is {status}"), PATIENCE, async || {
            let flow = self.db.flow(flow_id).await;
            let ended = ["BIZ_SUCCESS", "REFUNDED", "PAY_FAIL"].contains(&flow.status.as_str());
            assert!(!ended || flow.status == status, "awaiting {status}, but it ended: {flow:?}");
            (flow.status == status).then_some(flow)
        })
        .await
    }

    /// Waits until each flow is at `status`.
    pub async fn all_reach(&self, flows: &[i64], status: &str) {
        for flow_id in flows {
            self.reaches(*flow_id, status).await;
        }
    }

    /// Waits until a boolean query says true.
    pub async fn becomes_true(&self, query: &str) {
        eventually(query, PATIENCE, async || self.db.value::<bool>(query).await.then_some(())).await;
    }

    /// Waits until nothing is unfinished.
    pub async fn converged(&self, timeout: Duration) {
        let unfinished = "select count(*) from paylatch.job";
        eventually("nothing is unfinished", timeout, async || {
            (self.db.value::<i64>(unfinished).await == 0).then_some(())
        })
        .await;
    }

    /// Panics unless every rule holds, at the database's word, by the simulator's count and in the SQL business.
    /// Returns that count.
    pub async fn assert_rules(&self) -> Effects {
        let effects = self.sim.effects().await;
        assert_never_rules(&self.db, &effects).await;
        let owners: Vec<(String, String)> = sqlx::query_as("select biz_key, owner from app.streak")
            .fetch_all(self.db.pool())
            .await
            .expect("read the SQL business");
        let owners: HashMap<_, _> = owners.into_iter().collect();
        let flows: Vec<(String, String, String)> = sqlx::query_as(
            "select f.status::text, f.trade_order_no, o.biz_key from paylatch.pay_flow f
             join paylatch.pay_order o using (order_id) where f.scene = 'streak'",
        )
        .fetch_all(self.db.pool())
        .await
        .expect("list flows");
        for (status, order_no, biz_key) in flows {
            let owns = owners.get(&biz_key) == Some(&order_no);
            assert_eq!(owns, status == "BIZ_SUCCESS", "{order_no} is {status}, the business was done for it: {owns}");
        }
        effects
    }
}

/// Holds up, inside the database, whoever is about to change a flow in a certain way.
///
/// So a test can stop a daemon exactly between an effect and its report, without guessing at times.
pub struct Gate {
    session: PgConnection,
    table: &'static str,
}

/// The advisory lock behind the gate; advisory locks are apart for each database.
const GATE: i64 = 4711;

impl Gate {
    /// From now on an update of a flow for which `when` is true (over `old` and `new`) waits.
    pub async fn shut(db: &Database, when: &str) -> Self {
        Self::shut_on(db, "pay_flow", when).await
    }

    /// The same for another table.
    pub async fn shut_on(db: &Database, table: &'static str, when: &str) -> Self {
        let mut session = db.session().await;
        let trigger = format!(
            "create or replace function public.gate() returns trigger language plpgsql as $$
             begin perform pg_catalog.pg_advisory_xact_lock_shared({GATE}); return new; end $$;
             create trigger t01_gate before update on paylatch.{table}
                 for each row when ({when}) execute function public.gate();
             select pg_advisory_lock({GATE})"
        );
        crate::database::run(&mut session, &trigger).await;
        Self { session, table }
    }

    /// Waits until somebody stands before the gate; returns the process id of that session.
    pub async fn reached(&mut self) -> i32 {
        let waiting = "select pid from pg_locks where locktype = 'advisory' and not granted
                       and database = (select oid from pg_database where datname = current_database()) limit 1";
        eventually("a session stands before the gate", PATIENCE, async || {
            sqlx::query_scalar(waiting).fetch_optional(&mut self.session).await.expect("look at the locks")
        })
        .await
    }

    /// Ends the waiting session `pid`, whose change is then undone, and waits for its end.
    pub async fn turn_away(&mut self, pid: i32) {
        let ended = sqlx::query_scalar("select pg_terminate_backend($1, 30000)").bind(pid);
        assert!(ended.fetch_one(&mut self.session).await.unwrap_or(false), "session {pid} does not end");
    }

    /// Lets everybody through, for good.
    pub async fn open(mut self) {
        let open = format!("select pg_advisory_unlock({GATE}); drop trigger t01_gate on paylatch.{}", self.table);
        crate::database::run(&mut self.session, &open).await;
    }
}
