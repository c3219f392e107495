//! F8: the wallet is down for ten minutes while payments pile up, then it is back. No second flood.

use std::time::Duration;

use paylatch_core::outcome::Outcome;
use paylatch_tests::invariants::assert_verified;
use paylatch_tests::payments::{claim, report};
use paylatch_tests::stage::PATIENCE;
use paylatch_tests::{Database, Stage};

/// Ten minutes, second by second, on the database's moved clock: what is handed out, and when.
#[tokio::test]
async fn f08_ten_minutes_down_and_back() {
    const RATE: i64 = 50;
    const FLOWS: i64 = 800;
    const DOWN_S: i64 = 600;
    const RAMP_S: i64 = 60;
    let db = Database::fresh().await;
    db.add_scenes().await;
    db.execute(&format!("update paylatch.channel set rate_per_second = {RATE}, ramp_ms = {RAMP_S} * 1000")).await;
    db.execute("update paylatch.scene set default_deadline_ms = 7200000").await;
    let backlog = format!(
        "select paylatch.create_pay_flows((select jsonb_agg(jsonb_build_object('scene', 'topup', 'user_id', n,
             'biz_key', n, 'amount', n, 'currency', 'USD')) from generate_series(1, {FLOWS}) n))"
    );
    db.execute(&backlog).await;
    let mut session = db.session().await;
    let start: f64 = db.value("select extract(epoch from clock_timestamp())::float8").await;
    let mut at = async |ms: i64, outcome: Outcome| {
        // From the start, and not from now: what the test itself takes is no time.
        let set = format!(
            "select set_config('paylatch.clock_offset_ms',
                 (({start} - extract(epoch from clock_timestamp())) * 1000 + {ms})::int::text, false)"
        );
        paylatch_tests::database::run(&mut session, &set).await;
        let handouts = claim(&mut session, 200).await;
        let evidence: Vec<_> = handouts.iter().map(|handout| handout.evidence(outcome)).collect();
        report(&mut session, &evidence).await;
        let charges = handouts.iter().filter(|handout| handout.action == "CHARGE").count();
        (i64::try_from(handouts.len()).unwrap(), charges)
    };

    // Down. The first second's worth finds out; from then on a handful probes, and charges nobody anew.
    let (found_out, _) = at(0, Outcome::Unknown).await;
    assert_eq!(found_out, RATE);
    let spread = "select count(distinct due_at), (extract(epoch from max(due_at) - min(due_at)) * 1000)::bigint
                  from paylatch.job where lane = 'ask'";
    let (different, apart_ms): (i64, i64) = sqlx::query_as(spread).fetch_one(db.pool()).await.unwrap();
    assert!(different > RATE * 9 / 10 && apart_ms > 200, "{different} retry times within {apart_ms} ms");
    let mut probes = 0;
    for second in 1..DOWN_S {
        let (calls, charges) = at(second * 1000, Outcome::Unknown).await;
        assert_eq!(charges, 0, "a charge leaves in second {second} of the outage");
        probes += calls;
    }
    assert!((60..=DOWN_S / 10 * 5).contains(&probes), "{probes} probes in {DOWN_S} s");

    // Back. The first answer closes the breaker; then the rate comes back little by little.
    let mut closed_at = None;
    let mut done = 0;
    let mut by_now = 0.0;
    for tenth in 0.. {
        assert!(tenth < 3000, "{done} of {FLOWS} flows are through after 5 minutes");
        let ms = DOWN_S * 1000 + tenth * 100;
        let (calls, _) = at(ms, Outcome::Succeeded).await;
        done += calls;
        let Some(start) = closed_at else {
            closed_at = (calls > 0).then_some(ms);
            by_now = calls as f64;
            continue;
        };
        // The bucket holds a second's worth at most, and a statement may come a little late.
        let percent = ((ms - start) * 100 / (RAMP_S * 1000)).clamp(5, 100) as f64;
        let rate = RATE as f64 * percent / 100.0;
        by_now += rate / 10.0;
        assert!(calls as f64 <= rate + 1.0, "{calls} calls at once {} ms after the wallet came back", ms - start);
        assert!(done as f64 <= by_now + rate + 1.0, "{done} calls within {} ms of its coming back", ms - start);
        if done >= FLOWS {
            break;
        }
    }
    let ended = "select count(*) from paylatch.pay_flow where status = 'BIZ_SUCCESS'";
    assert_eq!(db.value::<i64>(ended).await, FLOWS);
    assert_verified(&db).await;
}

/// The same in small with real processes: what the wallet sees of it.
#[tokio::test]
async fn f08_the_wallet_sees_no_flood() {
    const RATE: f64 = 100.0;
    const FLOWS: i32 = 300;
    const RAMP_S: f64 = 4.0;
    let stage = Stage::set().await;
    stage
        .db
        .execute(
            "update paylatch.channel set rate_per_second = 100, ramp_ms = 4000, breaker_threshold = 10,
                 breaker_open_ms = 500, breaker_probes = 3",
        )
        .await;
    stage.sim.admin().outage(Duration::from_secs(3600)).await.unwrap();
    stage.create_many("topup", FLOWS).await;
    let _daemon = stage.daemon().await;
    stage.becomes_true("select breaker <> 'closed' from paylatch.channel_state").await;
    let wallet_calls = async || -> f64 {
        let requests = stage.sim.effects().await.requests;
        requests.iter().filter(|(op, _)| op.is_wallet()).map(|(_, count)| *count as f64).sum()
    };
    let now_s = async || -> f64 { stage.db.value("select extract(epoch from clock_timestamp())::float8").await };
    let open_since = now_s().await;
    let before = wallet_calls().await;
    stage.becomes_true(&format!("select extract(epoch from clock_timestamp()) > {open_since} + 4")).await;
    let probed = wallet_calls().await - before;
    let down_s = now_s().await - open_since;
    // Calls that were handed out before the breaker opened, and then a few probes each half second.
    assert!(probed <= RATE + 3.0 * (down_s / 0.5 + 2.0), "{probed} calls within {down_s:.1} s of an open breaker");

    stage.sim.admin().outage(Duration::ZERO).await.unwrap();
    let mut samples = Vec::new();
    let start = now_s().await;
    while stage.db.value::<i64>("select count(*) from paylatch.job").await > 0 {
        let asked = now_s().await;
        let calls = wallet_calls().await;
        samples.push((asked, calls, now_s().await));
        assert!(now_s().await - start < PATIENCE.as_secs_f64(), "the backlog does not drain");
    }
    let closed = "select extract(epoch from moved_at)::float8 from paylatch.channel_state where breaker = 'closed'";
    let closed_s: f64 = stage.db.value(closed).await;
    for (n, (from_s, before, _)) in samples.iter().enumerate() {
        for (_, after, to_s) in &samples[n..] {
            let most = RATE * (to_s - from_s) + RATE + 5.0;
            assert!(after - before <= most, "{} calls within {:.2} s", after - before, to_s - from_s);
        }
    }
    // Half of the ramp brings an eighth of what the full rate would.
    let at_first = samples.iter().filter(|(from_s, ..)| *from_s < closed_s).map(|(_, calls, _)| *calls).next_back();
    let in_ramp =
        samples.iter().filter(|(.., to_s)| *to_s < closed_s + RAMP_S / 2.0).map(|(_, calls, _)| *calls).next_back();
    let ramped = in_ramp.unwrap_or(0.0) - at_first.unwrap_or(before + probed);
    assert!(ramped <= RATE * RAMP_S / 8.0 + 15.0, "{ramped} calls in the first half of the ramp");
    let effects = stage.assert_rules().await;
    assert_eq!(effects.charges.len(), usize::try_from(FLOWS).unwrap());
    assert!(effects.charges.values().all(|charge| charge.count == 1));
}
