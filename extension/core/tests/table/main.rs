//! The decision table, row by row: (row of the database, policy, what came back) -> what happens.
//!
//! Read it beside the table in ARCHITECTURE.md. Times are seconds from NOW. A charge, execution or refund in
//! `..._sent()` left a minute ago under a lease that ended half a minute ago, and no answer has settled it.

mod words;

use paylatch_core::NEVER;
use paylatch_core::decide::{Facts, Next, Reason, next_action};
use paylatch_core::flow::Status::*;
use paylatch_core::outcome::Action::{self, *};
use paylatch_core::outcome::ErrorClass;
use paylatch_core::outcome::Outcome::{self, *};
use paylatch_core::policy::Policy;
use paylatch_core::step::step;

use words::*;

#[rustfmt::skip]
#[test]
fn wait_pay_rows() {
    hold(&[
        ("due: charged", wait_pay(), HTTP, DUE, becomes(Paying).and_sends(Charge).unread()),
        ("a second before the deadline: charged", wait_pay().deadline(1), HTTP, DUE, becomes(Paying).and_sends(Charge)),
        ("cancelled: two steps, nothing leaves", wait_pay().cancelled(), HTTP, DUE, becomes(Paying).and_again()),
        ("deadline reached: the same", wait_pay().deadline(0), HTTP, DUE, becomes(Paying).and_again()),
        ("deadline passed: the same", wait_pay().deadline(-9), HTTP, DUE, becomes(Paying).and_again()),
        ("... and the second step", flow(Paying).deadline(-9), HTTP, DUE, becomes(PayFail)),
        ("... cancelled", flow(Paying).cancelled(), HTTP, DUE, becomes(PayFail)),
        ("... where the channel could close", flow(Paying).cancelled(), CLOSES, DUE, becomes(PayFail)),
        ("sent once, where the channel takes each number once", wait_pay(), SENDS_ONCE, DUE, becomes(Paying).and_sends(Charge)),
        ("frozen", wait_pay().frozen(), HTTP, DUE, NOTHING),
    ], FREELY);
    hold(&[
        ("nothing may leave", wait_pay(), HTTP, DUE, waits(0).unchanged()),
        ("nothing may leave, cancelled", wait_pay().cancelled(), HTTP, DUE, becomes(Paying).and_again()),
    ], NOTHING_LEAVES);
    hold(&[
        ("there is nothing to ask about", wait_pay(), HTTP, DUE, waits(0).unchanged()),
        ("cancelled", wait_pay().cancelled(), HTTP, DUE, becomes(Paying).and_again()),
    ], QUESTIONS_ONLY);
    hold(&[("goes through the queue", wait_pay(), HTTP, DUE, waits(0).unchanged())], WALLET_QUEUES);
}

#[rustfmt::skip]
#[test]
fn paying_rows_before_the_deadline() {
    hold(&[
        ("never asked since the last send: asked, same number", charge_sent(), HTTP, DUE, asks(QueryCharge)),
        ("... also where the channel closes", charge_sent(), CLOSES, DUE, asks(QueryCharge)),

        ("CHARGE succeeded", charge_sent(), HTTP, says(Charge, Succeeded), becomes(Payed).and_sends(ExecuteBusiness)),
        ("CHARGE refused", charge_sent(), HTTP, says(Charge, Failed), becomes(PayFail)),
        ("CHARGE under way", charge_sent(), HTTP, says(Charge, Processing), waits(1).unread()),
        ("CHARGE unknown", charge_sent(), HTTP, says(Charge, Unknown), waits(1).unread()),
        ("CHARGE not sent", charge_sent(), HTTP, says(Charge, Unavailable), waits(1).unread()),
        ("CHARGE in conflict", charge_sent(), HTTP, says(Charge, Conflict), freezes(Reason::ParameterConflict)),

        ("asked: succeeded", charge_sent(), HTTP, says(QueryCharge, Succeeded), becomes(Payed).and_sends(ExecuteBusiness)),
        ("asked: refused", charge_sent(), HTTP, says(QueryCharge, Failed), becomes(PayFail)),
        ("asked: under way", charge_sent(), HTTP, says(QueryCharge, Processing), waits(1).unread()),
        ("asked: unknown", charge_sent(), HTTP, says(QueryCharge, Unknown), waits(1).unread()),
        ("asked: unavailable", charge_sent(), HTTP, says(QueryCharge, Unavailable), waits(1).unread()),
        ("asked: not found, sent again", charge_sent(), HTTP, says(QueryCharge, NotFound), sends(Charge).unread().negatives(0)),

        ("being charged is the whole business", charge_sent(), NO_BUSINESS, says(QueryCharge, Succeeded), becomes(Payed).and_again()),
        ("back off further each time", charge_sent().retried(3), HTTP, says(QueryCharge, Unknown), waits(8)),
        ("the last quick retry", charge_sent().retried(9), HTTP, says(QueryCharge, Unknown), waits(60)),
        ("F13: past patience slowly, for ever, no edge", charge_sent().retried(10), HTTP, says(QueryCharge, Unknown), waits(300)),
        ("F13: years later", charge_sent().retried(100_000).deadline(-9_999), HTTP, says(QueryCharge, Unavailable), waits(300)),
    ], FREELY);
}

#[rustfmt::skip]
#[test]
fn not_found_is_weighed() {
    let early = charge_sent().lease_ends(20);
    let forgotten = charge_sent().first_sent(-3_600);
    hold(&[
        ("asked before the lease's end: proves nothing", early, HTTP, says(QueryCharge, NotFound), Then { due_at: NOW + 20_001_000, ..STAYS }.unread().negatives(0)),
        ("... expired too", early.deadline(-9), HTTP, says(QueryCharge, NotFound), Then { due_at: NOW + 20_001_000, ..STAYS }.unread().negatives(0)),
        ("... where the channel closes", early.cancelled(), CLOSES, says(QueryCharge, NotFound), Then { due_at: NOW + 20_001_000, ..STAYS }.unread()),
        ("... after a close", early.cancelled().last(Closed), CLOSES, says(QueryCharge, NotFound), Then { due_at: NOW + 20_001_000, ..STAYS }.unread()),
        ("asked at the lease's very end: nothing either", charge_sent().lease_ends(-1), HTTP, says(QueryCharge, NotFound), waits(1).unread()),
        ("asked a second later: sent again", charge_sent().lease_ends(-2), HTTP, says(QueryCharge, NotFound), sends(Charge)),

        ("resend window open for one more second", charge_sent().first_sent(-3_599), HTTP, says_at(0, QueryCharge, NotFound), sends(Charge)),
        ("resend window passed: only questions", forgotten, HTTP, says_at(0, QueryCharge, NotFound), waits(1).settled()),
        ("... when due again", forgotten.settled().negatives(1, -9), HTTP, DUE, asks(QueryCharge)),
        ("the channel takes a number once: only questions", charge_sent(), SENDS_ONCE, says(QueryCharge, NotFound), waits(1).settled()),
        ("... when due again", charge_sent().settled(), SENDS_ONCE, DUE, asks(QueryCharge)),
        ("settled by an earlier NOT_FOUND: sent again", charge_sent().settled(), HTTP, DUE, sends(Charge).unread()),
        ("PROCESSING wipes the negatives before it", charge_sent().negatives(2, -300), SENDS_ONCE, says(QueryCharge, Processing), waits(1).unread().negatives(0)),
        ("UNKNOWN leaves them", charge_sent().negatives(2, -300), SENDS_ONCE, says(QueryCharge, Unknown), waits(1).negatives(2)),
    ], FREELY);
}

#[rustfmt::skip]
#[test]
fn paying_rows_once_expired_where_the_channel_closes() {
    let expired = charge_sent().deadline(-9);
    let cancelled = charge_sent().cancelled();
    hold(&[
        ("still unread: asked first", expired, CLOSES, DUE, asks(QueryCharge)),
        ("not found: closed", expired, CLOSES, says(QueryCharge, NotFound), sends(CloseCharge).settled()),
        ("cancelled and not found: closed", cancelled, CLOSES, says(QueryCharge, NotFound), sends(CloseCharge)),
        ("the deadline passed since it was asked", charge_sent().deadline(0), CLOSES, says(QueryCharge, NotFound), sends(CloseCharge)),
        ("settled: closed", cancelled.settled(), CLOSES, DUE, asks(CloseCharge)),
        ("under way: not closed", cancelled, CLOSES, says(QueryCharge, Processing), waits(1).unread()),
        ("cancelled, yet paid", cancelled, CLOSES, says(QueryCharge, Succeeded), becomes(Payed).and_sends(QueryBusiness)),

        ("F15: CLOSED is asked about", cancelled.settled(), CLOSES, says(CloseCharge, Closed), sends(QueryCharge).unread()),
        ("F15: the customer had paid", cancelled.last(Closed), CLOSES, says(QueryCharge, Succeeded), becomes(Payed).and_sends(QueryBusiness)),
        ("closed, not found: failed", cancelled.last(Closed), CLOSES, says(QueryCharge, NotFound), becomes(PayFail)),
        ("closed, says so: failed", cancelled.last(Closed), CLOSES, says(QueryCharge, Failed), becomes(PayFail)),
        ("closed, under way after all", cancelled.last(Closed), CLOSES, says(QueryCharge, Processing), waits(1).unread()),
        ("closed, unknown: asked again", cancelled.last(Closed), CLOSES, says(QueryCharge, Unknown), waits(1).unread()),
        ("close answers that it was paid", cancelled.settled(), CLOSES, says(CloseCharge, Succeeded), becomes(Payed).and_sends(QueryBusiness)),
        ("close unknown: asked", cancelled.settled(), CLOSES, says(CloseCharge, Unknown), waits(1).unread()),
        ("close not sent: asked", cancelled.settled(), CLOSES, says(CloseCharge, Unavailable), waits(1).unread()),
        ("a question cannot close: taken as unknown", cancelled, CLOSES, says(QueryCharge, Closed), waits(1).unread()),
    ], FREELY);
}

#[rustfmt::skip]
#[test]
fn paying_rows_once_expired_where_the_channel_cannot_close() {
    // 400 s must be spanned, so questions count when asked 100 s apart. The lease ended at -30 s.
    let expired = charge_sent().deadline(-9);
    let long_ago = expired.lease_ends(-500);
    hold(&[
        ("settled: asked", expired.settled(), HTTP, DUE, asks(QueryCharge)),
        ("first NOT_FOUND: asked apart", expired, HTTP, says(QueryCharge, NotFound), waits(99).settled().negatives(1)),
        ("cancelled: the same", charge_sent().cancelled(), HTTP, says(QueryCharge, NotFound), waits(99).negatives(1)),
        ("asked again too soon: not counted", expired.negatives(1, -50), HTTP, says(QueryCharge, NotFound), waits(99).negatives(1)),
        ("second, asked apart", expired.negatives(1, -101), HTTP, says(QueryCharge, NotFound), waits(99).negatives(2)),
        ("third too soon after the second", long_ago.negatives(2, -200), HTTP, says(QueryCharge, NotFound), waits(99).negatives(2)),
        ("three, spanning it all: failed", long_ago.negatives(2, -201), HTTP, says(QueryCharge, NotFound), becomes(PayFail)),
        ("three, a second short of it", expired.lease_ends(-400).negatives(2, -201), HTTP, says(QueryCharge, NotFound), waits(99).negatives(3)),
        ("three, exactly it", expired.lease_ends(-401).negatives(2, -201), HTTP, says(QueryCharge, NotFound), becomes(PayFail)),
        ("long ago, but two only", long_ago.negatives(1, -101), HTTP, says(QueryCharge, NotFound), waits(99).negatives(2)),
        ("long ago, the first", long_ago, HTTP, says(QueryCharge, NotFound), waits(99).negatives(1)),
        ("visible after all (F14)", long_ago.negatives(2, -201), HTTP, says(QueryCharge, Succeeded), becomes(Payed).and_sends(QueryBusiness)),
        ("unknown between them", long_ago.negatives(2, -201), HTTP, says(QueryCharge, Unknown), waits(1).negatives(2)),

        ("never final: apart by the shortest wait", expired, NEVER_FINAL, says(QueryCharge, NotFound), Then { due_at: NOW + 1, ..STAYS }.negatives(1)),
        ("never final: asked again", expired, NEVER_FINAL, says_at(0, QueryCharge, NotFound), waits(1).negatives(1)),
        ("never final: the third freezes", expired.negatives(2, -9), NEVER_FINAL, says(QueryCharge, NotFound), freezes(Reason::ChargeUnresolved)),
        ("never final: not a burst of three", expired.negatives(2, -2), NEVER_FINAL, says(QueryCharge, NotFound), Then { due_at: NOW + 1, ..STAYS }.negatives(2)),
    ], FREELY);
}

#[rustfmt::skip]
#[test]
fn a_success_must_echo_everything() {
    let mismatch = freezes(Reason::EvidenceMismatch);
    for action in [Charge, QueryCharge, CloseCharge] {
        hold(&[
            ("all of it", charge_sent(), HTTP, echoes(action, Some(NUMBER), Some(500), Some("CNY")), becomes(Payed).and_sends(ExecuteBusiness)),
            ("another number", charge_sent(), HTTP, echoes(action, Some(OTHER), Some(500), Some("CNY")), mismatch),
            ("the refund's number", charge_sent(), HTTP, echoes(action, Some(REFUND_NUMBER), Some(500), Some("CNY")), mismatch),
            ("no number", charge_sent(), HTTP, echoes(action, None, Some(500), Some("CNY")), mismatch),
            ("another amount", charge_sent(), HTTP, echoes(action, Some(NUMBER), Some(499), Some("CNY")), mismatch),
            ("no amount", charge_sent(), HTTP, echoes(action, Some(NUMBER), None, Some("CNY")), mismatch),
            ("another currency", charge_sent(), HTTP, echoes(action, Some(NUMBER), Some(500), Some("JPY")), mismatch),
            ("no currency", charge_sent(), HTTP, echoes(action, Some(NUMBER), Some(500), None), mismatch),
        ], FREELY);
    }
    for action in [Refund, QueryRefund] {
        hold(&[
            ("all of it", refund_sent(), HTTP, echoes(action, Some(REFUND_NUMBER), Some(500), Some("CNY")), becomes(Refunded)),
            ("the charge's number", refund_sent(), HTTP, echoes(action, Some(NUMBER), Some(500), Some("CNY")), mismatch),
            ("no number", refund_sent(), HTTP, echoes(action, None, Some(500), Some("CNY")), mismatch),
            ("another amount", refund_sent(), HTTP, echoes(action, Some(REFUND_NUMBER), Some(5), Some("CNY")), mismatch),
            ("no amount", refund_sent(), HTTP, echoes(action, Some(REFUND_NUMBER), None, Some("CNY")), mismatch),
            ("another currency", refund_sent(), HTTP, echoes(action, Some(REFUND_NUMBER), Some(500), Some("cny")), mismatch),
            ("no currency", refund_sent(), HTTP, echoes(action, Some(REFUND_NUMBER), Some(500), None), mismatch),
        ], FREELY);
    }
}

#[rustfmt::skip]
#[test]
fn payed_rows() {
    let closing = payed().deadline(-60).last(NotDone).negatives(0, -9);
    hold(&[
        ("due: executed", payed(), HTTP, DUE, sends(ExecuteBusiness).unread()),
        ("nothing more to do", payed(), NO_BUSINESS, DUE, becomes(BizSuccess)),
        ("executed, unread: the fact is read", execute_sent(), HTTP, DUE, asks(QueryBusiness)),

        ("execute answers DONE: read the fact", execute_sent(), HTTP, says(ExecuteBusiness, Done), asks(QueryBusiness).unread()),
        ("execute answers NOT_DONE: read the fact", execute_sent(), HTTP, says(ExecuteBusiness, NotDone), asks(QueryBusiness)),
        ("execute answers REJECTED: read the fact", execute_sent(), HTTP, says(ExecuteBusiness, Rejected), sends(QueryBusiness)),
        ("execute answers FAILED: read the fact", execute_sent(), HTTP, says(ExecuteBusiness, Failed), sends(QueryBusiness)),
        ("execute unknown: read the fact", execute_sent(), HTTP, says(ExecuteBusiness, Unknown), sends(QueryBusiness)),
        ("execute not sent: read the fact", execute_sent(), HTTP, says(ExecuteBusiness, Unavailable), sends(QueryBusiness)),
        ("execute contradictory: read the fact", execute_sent(), HTTP, says(ExecuteBusiness, Contradictory), sends(QueryBusiness)),

        ("done by this attempt", execute_sent(), HTTP, says(QueryBusiness, Done), becomes(BizSuccess)),
        ("F3: done, though late and cancelled", execute_sent().deadline(-99).cancelled(), HTTP, says(QueryBusiness, Done), becomes(BizSuccess)),
        ("F6: done by another attempt", execute_sent(), HTTP, done_by(QueryBusiness, Some(OTHER)), becomes(Refunding).and_sends(Refund)),
        ("done, does not say by whom", execute_sent(), HTTP, done_by(QueryBusiness, None), freezes(Reason::Unattributed)),
        ("never for this number", execute_sent(), HTTP, says(QueryBusiness, Rejected), becomes(Refunding).and_sends(Refund)),
        ("contradicts itself", execute_sent(), HTTP, says(QueryBusiness, Contradictory), freezes(Reason::BusinessContradictory)),
        ("not done, in time: later again", execute_sent(), HTTP, says(QueryBusiness, NotDone), waits(1).settled()),
        ("... executed again", execute_sent().settled().last(NotDone), HTTP, DUE, sends(ExecuteBusiness).unread()),
        ("unknown: asked again", execute_sent(), HTTP, says(QueryBusiness, Unknown), waits(1).unread()),
        ("unavailable: asked again", execute_sent(), HTTP, says(QueryBusiness, Unavailable), waits(1).unread()),
        ("unknown for the last time", execute_sent().unanswered(9), HTTP, says(QueryBusiness, Unknown), waits(60)),
        ("one unknown after many honest answers: asked again, slowly", execute_sent().retried(10), HTTP, says(QueryBusiness, Unknown), waits(300)),
        ("unknown too often: never refunded blind", execute_sent().unanswered(10), HTTP, says(QueryBusiness, Unknown), freezes(Reason::BusinessUnresolved)),
        ("unavailable too often, long past the deadline", execute_sent().unanswered(10).deadline(-999), HTTP, says(QueryBusiness, Unavailable), freezes(Reason::BusinessUnresolved)),

        ("past the deadline: read only", payed().deadline(0), HTTP, DUE, asks(QueryBusiness)),
        ("F9: read within the grace: not final", execute_sent().deadline(-10), HTTP, says(QueryBusiness, NotDone), waits(1).settled()),
        ("F9: read at the grace's very end: not final", execute_sent().deadline(-21), HTTP, says(QueryBusiness, NotDone), Then { due_at: NOW + 1, ..STAYS }),
        ("F9: read after the grace: refunded", execute_sent().deadline(-22), HTTP, says(QueryBusiness, NotDone), becomes(Refunding).and_sends(Refund)),
        ("F9: read before the grace's end, heard after it", execute_sent().deadline(-22), HTTP, says_at(-5, QueryBusiness, NotDone), Then { due_at: NOW + 1, ..STAYS }),
        ("a retry does not sleep past the grace's end", execute_sent().deadline(-15).retried(8), HTTP, says(QueryBusiness, NotDone), Then { due_at: NOW + 5_001_000, ..STAYS }),

        ("the business can close: closed first", execute_sent().deadline(-22), BUSINESS_CLOSES, says(QueryBusiness, NotDone), sends(CloseBusiness).settled()),
        ("... when due again", closing, BUSINESS_CLOSES, DUE, asks(CloseBusiness)),
        ("... but not on a fact from within the grace", closing.negatives(0, -41), BUSINESS_CLOSES, DUE, asks(QueryBusiness)),
        ("... nor after an unknown", closing.last(Unknown), BUSINESS_CLOSES, DUE, asks(QueryBusiness)),
        ("closed: refunded", closing, BUSINESS_CLOSES, says(CloseBusiness, Closed), becomes(Refunding).and_sends(Refund)),
        ("close finds it done", closing, BUSINESS_CLOSES, says(CloseBusiness, Done), becomes(BizSuccess)),
        ("close finds it done by another", closing, BUSINESS_CLOSES, done_by(CloseBusiness, Some(OTHER)), becomes(Refunding).and_sends(Refund)),
        ("close finds it done, by whom?", closing, BUSINESS_CLOSES, done_by(CloseBusiness, None), freezes(Reason::Unattributed)),
        ("close unknown: the fact is read again", closing, BUSINESS_CLOSES, says(CloseBusiness, Unknown), waits(1).unread()),
        ("close not sent: the fact is read again", closing, BUSINESS_CLOSES, says(CloseBusiness, Unavailable), waits(1).unread()),
        ("close unknown too often", closing.unanswered(10), BUSINESS_CLOSES, says(CloseBusiness, Unknown), freezes(Reason::BusinessUnresolved)),
        ("a question cannot close: taken as unknown", execute_sent(), BUSINESS_CLOSES, says(QueryBusiness, Closed), waits(1).unread()),
    ], FREELY);
}

#[rustfmt::skip]
#[test]
fn cancel_once_payed() {
    let cancelled = execute_sent().cancelled();
    hold(&[
        ("never executed: read first", payed().cancelled(), HTTP, DUE, asks(QueryBusiness)),
        ("never executed, not done: refunded at once", payed().cancelled(), HTTP, says(QueryBusiness, NotDone), becomes(Refunding).and_sends(Refund)),
        ("never executed, closed first", payed().cancelled(), BUSINESS_CLOSES, says(QueryBusiness, NotDone), sends(CloseBusiness)),
        ("never executed, done by another", payed().cancelled(), HTTP, done_by(QueryBusiness, Some(OTHER)), becomes(Refunding).and_sends(Refund)),
        ("executed, settled: read only", cancelled.settled(), HTTP, DUE, asks(QueryBusiness)),
        ("executed, lease and grace over: refunded", cancelled, HTTP, says(QueryBusiness, NotDone), becomes(Refunding).and_sends(Refund)),
        ("executed, read within lease and grace: not final", cancelled.lease_ends(-10), HTTP, says(QueryBusiness, NotDone), waits(1).settled()),
        ("... nor at its very end", cancelled.lease_ends(-21), HTTP, says(QueryBusiness, NotDone), Then { due_at: NOW + 1, ..STAYS }),
        ("... but a second later", cancelled.lease_ends(-22), HTTP, says(QueryBusiness, NotDone), becomes(Refunding).and_sends(Refund)),
        ("the deadline counts where it comes before the lease's end", cancelled.lease_ends(25).deadline(-22), HTTP, says(QueryBusiness, NotDone), becomes(Refunding).and_sends(Refund)),
        ("executed and done: the wish came too late", cancelled, HTTP, says(QueryBusiness, Done), becomes(BizSuccess)),
        ("executed, unknown", cancelled, HTTP, says(QueryBusiness, Unknown), waits(1).unread()),
        ("charged is enough: the wish came too late", payed().cancelled(), NO_BUSINESS, DUE, becomes(BizSuccess)),
    ], FREELY);
}

#[rustfmt::skip]
#[test]
fn refunding_rows() {
    let forgotten = refund_sent().first_sent(-3_600);
    hold(&[
        ("entered: sent", refunding(), HTTP, DUE, sends(Refund).unread()),
        ("entered, where the channel takes a number once: sent", refunding(), SENDS_ONCE, DUE, sends(Refund).unread()),
        ("entered by a fact, where it takes a number once", execute_sent(), SENDS_ONCE, says(QueryBusiness, Rejected), becomes(Refunding).and_sends(Refund)),
        ("cancelled and late make no difference", refunding().cancelled().deadline(-999), HTTP, DUE, sends(Refund)),
        ("sent, unread: asked", refund_sent(), HTTP, DUE, asks(QueryRefund)),

        ("REFUND succeeded", refund_sent(), HTTP, says(Refund, Succeeded), becomes(Refunded)),
        ("REFUND under way: asked", refund_sent(), HTTP, says(Refund, Processing), waits(1).unread()),
        ("REFUND unknown: asked", refund_sent(), HTTP, says(Refund, Unknown), waits(1).unread()),
        ("REFUND not sent: asked", refund_sent(), HTTP, says(Refund, Unavailable), waits(1).unread()),
        ("REFUND in conflict", refund_sent(), HTTP, says(Refund, Conflict), freezes(Reason::ParameterConflict)),
        ("REFUND refused: once more, later", refund_sent(), HTTP, says(Refund, Failed), waits(1).settled().negatives(1)),
        ("... sent again", refund_sent().settled().negatives(1, -9), HTTP, DUE, sends(Refund).unread().negatives(1)),
        ("... only asked where it takes a number once", refund_sent().settled().negatives(1, -9), SENDS_ONCE, DUE, asks(QueryRefund)),
        ("... only asked past the resend window", forgotten.settled().negatives(1, -9), HTTP, DUE, asks(QueryRefund)),
        ("refused three times", refund_sent().negatives(2, -9), HTTP, says(Refund, Failed), freezes(Reason::RefundFailed)),

        ("asked: succeeded", refund_sent(), HTTP, says(QueryRefund, Succeeded), becomes(Refunded)),
        ("asked: under way", refund_sent(), HTTP, says(QueryRefund, Processing), waits(1).unread()),
        ("asked: unknown", refund_sent(), HTTP, says(QueryRefund, Unknown), waits(1).unread()),
        ("asked: unavailable", refund_sent(), HTTP, says(QueryRefund, Unavailable), waits(1).unread()),
        ("asked: refused", refund_sent().negatives(2, -9), HTTP, says(QueryRefund, Failed), freezes(Reason::RefundFailed)),
        ("asked: not found, sent again", refund_sent(), HTTP, says(QueryRefund, NotFound), sends(Refund).unread()),
        ("asked before the lease's end: not found proves nothing", refund_sent().lease_ends(20), HTTP, says(QueryRefund, NotFound), Then { due_at: NOW + 20_001_000, ..STAYS }.unread()),
        ("not found, resend window passed: only questions", forgotten, HTTP, says_at(0, QueryRefund, NotFound), waits(1).unread()),
        ("not found, takes a number once: only questions", refund_sent(), SENDS_ONCE, says(QueryRefund, NotFound), waits(1).unread()),
        ("... and then a person", forgotten.retried(10), HTTP, says_at(0, QueryRefund, NotFound), freezes(Reason::RefundUnresolved)),
        ("unknown for ever: slowly, no edge", refund_sent().retried(99), HTTP, says(QueryRefund, Unknown), waits(300)),
    ], FREELY);
}

#[rustfmt::skip]
#[test]
fn where_only_questions_may_leave() {
    hold(&[
        ("instead of a resend", charge_sent().settled(), HTTP, DUE, asks(QueryCharge)),
        ("instead of a resend, told", charge_sent(), HTTP, says(QueryCharge, NotFound), sends(QueryCharge).settled()),
        ("instead of a close", charge_sent().settled().cancelled(), CLOSES, DUE, asks(QueryCharge)),
        ("instead of the first refund", refunding(), HTTP, DUE, asks(QueryRefund)),
        ("... which nobody knows yet", refunding(), HTTP, says(QueryRefund, NotFound), sends(QueryRefund).settled()),
        ("instead of another refund", refund_sent(), HTTP, says(QueryRefund, NotFound), sends(QueryRefund).settled()),
        // It is the wallet's breaker: the business goes on.
        ("the business is still executed", payed(), HTTP, DUE, sends(ExecuteBusiness)),
        ("the business is still closed", payed().deadline(-60).last(NotDone).negatives(0, -9), BUSINESS_CLOSES, DUE, asks(CloseBusiness)),
    ], QUESTIONS_ONLY);
}

#[rustfmt::skip]
#[test]
fn where_wallet_calls_must_queue() {
    hold(&[
        ("a question waits", charge_sent(), HTTP, DUE, waits(0).unchanged()),
        ("a resend waits", charge_sent(), HTTP, says(QueryCharge, NotFound), waits(0).settled()),
        ("a refund waits", execute_sent(), HTTP, says(QueryBusiness, Rejected), becomes(Refunding)),
        ("the business is executed", charge_sent(), HTTP, says(QueryCharge, Succeeded), becomes(Payed).and_sends(ExecuteBusiness)),
    ], WALLET_QUEUES);
    hold(&[
        ("edges are taken", charge_sent(), HTTP, says(QueryCharge, Succeeded), becomes(Payed)),
        ("a question waits", charge_sent(), HTTP, DUE, waits(0).unchanged()),
        ("an execution waits", payed(), HTTP, DUE, waits(0).unchanged()),
    ], NOTHING_LEAVES);
}

/// Business in the same database: the action comes back to be done in place, and the row does not announce it.
#[rustfmt::skip]
#[test]
fn business_in_the_same_database() {
    for leave in [FREELY, NOTHING_LEAVES, QUESTIONS_ONLY, WALLET_QUEUES] {
        hold(&[
            ("executed in place", payed(), SQL, DUE, waits(0).and_in_place(ExecuteBusiness).unchanged().settled()),
            ("executed with the charge's success", charge_sent(), SQL, says(QueryCharge, Succeeded), becomes(Payed).and_in_place(ExecuteBusiness).settled()),
            ("read in place once late", payed().deadline(-1), SQL, DUE, waits(0).and_in_place(QueryBusiness).unchanged()),
            ("read in place once cancelled", payed().cancelled(), SQL, DUE, waits(0).and_in_place(QueryBusiness).unchanged()),
            ("done: final in the same transaction", payed(), SQL, says(QueryBusiness, Done), becomes(BizSuccess)),
            ("not done: later again", payed(), SQL, says(QueryBusiness, NotDone), waits(1).settled()),
            ("closed in place", payed().deadline(-22), SQL_CLOSES, says(QueryBusiness, NotDone), waits(0).and_in_place(CloseBusiness)),
            ("unknown too often", payed().unanswered(10), SQL, says(QueryBusiness, Unknown), freezes(Reason::BusinessUnresolved)),
        ], leave);
    }
}

#[test]
fn ended_and_frozen_rows_are_left_alone() {
    let ended = [BizSuccess, Refunded, PayFail].map(flow);
    let frozen = [WaitPay, Paying, Payed, Refunding].map(|status| sent(status).cancelled().frozen());
    for facts in ended.into_iter().chain(frozen) {
        hold(&[("due", facts, HTTP, DUE, NOTHING)], FREELY);
        assert_eq!(next_action(&facts, &HTTP, NOW), Next::Nothing);
        for action in Action::ALL {
            for outcome in Outcome::ALL {
                let told = says(*action, *outcome);
                let step = step(&facts, &HTTP, told.as_ref(), NOW, FREELY);
                assert_eq!(step.facts, Facts { last_outcome: step.facts.last_outcome, ..facts });
                assert_eq!((step.action, step.again, step.due_at), (None, false, NEVER));
            }
        }
    }
}

/// What the row keeps is what was decided on: a word that its action cannot bring proves nothing later either.
#[test]
fn a_word_that_its_action_cannot_bring_is_kept_as_unknown() {
    let asked = step(&charge_sent().cancelled(), &CLOSES, says(QueryCharge, Closed).as_ref(), NOW, FREELY);
    assert_eq!(asked.facts.last_outcome, Some(Unknown));
    assert_eq!(asked.error_class, Unknown.error_class());
    let told = says(QueryCharge, NotFound);
    let then = step(&asked.facts, &CLOSES, told.as_ref(), NOW, FREELY);
    assert_eq!((then.facts.status, then.action), (Paying, Some(CloseCharge)), "nothing was closed yet");
}

/// Never sent and not wanted: two versions, two log rows, no call.
#[test]
fn an_unsent_flow_ends_in_two_steps_of_one_transaction() {
    for facts in [wait_pay().cancelled(), wait_pay().deadline(0), wait_pay().cancelled().deadline(-5)] {
        for leave in [FREELY, NOTHING_LEAVES, QUESTIONS_ONLY, WALLET_QUEUES] {
            let first = step(&facts, &CLOSES, None, NOW, leave);
            assert_eq!((first.facts.status, first.changed, first.again, first.action), (Paying, true, true, None));
            assert_eq!(first.facts.act_sent_at, None, "no charge is announced");
            let second = step(&first.facts, &CLOSES, None, NOW, leave);
            assert_eq!(
                (second.facts.status, second.changed, second.again, second.action),
                (PayFail, true, false, None)
            );
        }
    }
}

/// Every state begins with a clean count; an announcement says since when and until when its act may be out.
#[test]
fn an_announcement_says_when() {
    let charge = step(&wait_pay().retried(7).negatives(2, -9), &HTTP, None, NOW, FREELY).facts;
    assert_eq!((charge.act_sent_at, charge.act_lease_until, charge.act_unread), (Some(NOW), Some(LEASE), true));
    assert_eq!((charge.retry_count, charge.negative_count, charge.negative_since), (0, 0, None));
    let again = charge_sent().negatives(2, -300);
    let told = says(QueryCharge, NotFound);
    let again = step(&again, &HTTP, told.as_ref(), NOW, FREELY).facts;
    assert_eq!(again.act_sent_at, Some(NOW - 60 * SECOND), "the resend window runs from the first send");
    assert_eq!(again.act_lease_until, Some(LEASE), "the last lease counts");
    assert_eq!((again.negative_count, again.negative_since), (0, None), "older answers say nothing about this send");
    let told = says(QueryCharge, Succeeded);
    let paid = step(&charge_sent().retried(5).negatives(2, -9), &HTTP, told.as_ref(), NOW, NOTHING_LEAVES).facts;
    assert_eq!(paid, Facts { last_outcome: Some(Succeeded), ..payed() });
}

/// The log says what was answered; where nothing was told, what was announced, and no older answer beside it.
#[test]
fn the_log_names_what_happened() {
    let logged = |facts: Facts<'static>, policy: Policy, told: Told| {
        let step = step(&facts, &policy, told.as_ref(), NOW, FREELY);
        (step.logged_action, step.facts.last_outcome, step.error_class)
    };
    assert_eq!(logged(wait_pay(), HTTP, DUE), (Some(Charge), None, None));
    assert_eq!(logged(charge_sent().settled().last(NotFound), HTTP, DUE), (Some(Charge), None, None));
    assert_eq!(logged(payed().last(NotDone), HTTP, DUE), (Some(ExecuteBusiness), None, None));
    assert_eq!(logged(charge_sent(), HTTP, says(QueryCharge, NotFound)), (Some(QueryCharge), Some(NotFound), None));
    assert_eq!(logged(wait_pay().cancelled().last(Unknown), HTTP, DUE), (None, None, None));
    let refused = says(Charge, Failed);
    assert_eq!(logged(charge_sent(), HTTP, refused), (Some(Charge), Some(Failed), Some(ErrorClass::ExplicitFailure)));
    let unknown = says(QueryCharge, Unknown);
    assert_eq!(logged(charge_sent(), HTTP, unknown), (Some(QueryCharge), Some(Unknown), Some(ErrorClass::Unknown)));
}
