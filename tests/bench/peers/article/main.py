"""A payment service as a careful team writes it by hand: one row a statement, a commit after each step.

Order and attempt in a row each, unique constraints against doubles, compare-and-set on status and version, a log row for
every transition, no transaction open while an outside call runs. Each of CONNECTIONS processes takes one payment after
the other through its whole life; processes, since threads would share one core. With WALLET_URL and BUSINESS_URL its three
outside calls are real HTTP requests over a connection that is kept; without them they cost nothing.

Prints one line of JSON: flows, seconds, version.
"""

import io
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
import time
import urllib.parse

import psycopg
import pycurl

SCHEMA = """
create schema article;
create table article.pay_order (
    id bigint generated always as identity primary key,
    user_id text not null, biz_key text not null, status text not null, attempts integer not null default 0,
    version integer not null default 0, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
    unique (user_id, biz_key));
create table article.pay_flow (
    id bigint generated always as identity primary key,
    order_id bigint not null references article.pay_order, attempt integer not null, order_no text not null unique,
    amount bigint not null, currency text not null, status text not null, wallet_ref text, deadline timestamptz not null,
    version integer not null default 0, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
    unique (order_id, attempt));
create index on article.pay_flow (status, updated_at) where status in ('WAIT_PAY', 'PAYING', 'PAYED', 'REFUNDING');
create table article.pay_log (
    id bigint generated always as identity primary key,
    flow_id bigint not null, from_status text, to_status text not null, note text, at timestamptz not null default now());
create index on article.pay_log (flow_id);
"""


class Failed(Exception):
    """What ends the run, in one line."""


class Caller:
    """One kept connection to a service that speaks JSON. Of the blocking clients libcurl takes the least processor time."""

    def __init__(self, url):
        self.url = url
        self.curl = pycurl.Curl()
        self.curl.setopt(pycurl.TIMEOUT, 30)
        self.curl.setopt(pycurl.HTTPHEADER, ["Content-Type: application/json"])

    def send(self, method, path, body=None):
        answer = io.BytesIO()
        self.curl.setopt(pycurl.URL, self.url + path)
        self.curl.setopt(pycurl.WRITEDATA, answer)
        if method == "GET":
            self.curl.setopt(pycurl.HTTPGET, 1)
        else:
            self.curl.setopt(pycurl.POSTFIELDS, json.dumps(body))
        try:
            self.curl.perform()
            status = self.curl.getinfo(pycurl.RESPONSE_CODE)
            if status >= 300:
                raise Failed(f"{method} {self.url}{path}: {status} {answer.getvalue()[:200]!r}")
            return json.loads(answer.getvalue())
        except (pycurl.error, ValueError) as problem:
            raise Failed(f"{method} {self.url}{path}: {problem}") from problem


def move(db, flow_id, version, before, after, note=None, ref=None):
    """One edge by compare-and-set, with its log row, in the caller's transaction."""
    changed = db.execute(
        "update article.pay_flow set status = %s, version = version + 1, wallet_ref = coalesce(%s, wallet_ref), updated_at = now()"
        " where id = %s and status = %s and version = %s",
        (after, ref, flow_id, before, version),
    )
    if changed.rowcount != 1:
        raise Failed(f"flow {flow_id} is not {before}, version {version}")
    db.execute(
        "insert into article.pay_log (flow_id, from_status, to_status, note) values (%s, %s, %s, %s)",
        (flow_id, before, after, note),
    )
    return version + 1


def pay(db, tag, user, wallet, business):
    """One life. The connection commits by itself what is one statement, so that no BEGIN and COMMIT are spent on it."""
    # 1: is it there, and if not: the order, and an attempt at it
    if db.execute("select status from article.pay_order where user_id = %s and biz_key = 'bench'", (user,)).fetchone():
        raise Failed(f"there is an order of {user} already")
    with db.transaction():
        order_id = db.execute(
            "insert into article.pay_order (user_id, biz_key, status, attempts) values (%s, 'bench', 'PROCESSING', 1) returning id",
            (user,),
        ).fetchone()[0]
        flow_id = db.execute(
            "insert into article.pay_flow (order_id, attempt, order_no, amount, currency, status, deadline)"
            " values (%s, 1, %s, 1250, 'USD', 'WAIT_PAY', now() + interval '15 minutes') returning id",
            (order_id, f"ar{tag}_{order_id}_1"),
        ).fetchone()[0]
        db.execute("insert into article.pay_log (flow_id, to_status) values (%s, 'WAIT_PAY')", (flow_id,))
    # 2: say that a charge is about to leave
    order_no, amount, currency, version = db.execute(
        "select order_no, amount, currency, version from article.pay_flow where id = %s", (flow_id,)
    ).fetchone()
    with db.transaction():
        version = move(db, flow_id, version, "WAIT_PAY", "PAYING")
    # 3: charge
    ref = "free"
    if wallet:
        answer = wallet.send(
            "POST", "/charges", {"order_no": order_no, "amount": amount, "currency": currency, "user_id": user, "payload": None}
        )
        if answer["status"] != "SUCCEEDED":
            raise Failed(f"charge {order_no}: {answer}")
        ref = answer.get("request_id")
    with db.transaction():
        version = move(db, flow_id, version, "PAYING", "PAYED", ref=ref)
    # 4: the business, and then the fact
    if business:
        business.send("POST", "/business/execute", {"order_no": order_no, "biz_key": order_no, "valid_until": None, "payload": None})
    db.execute("insert into article.pay_log (flow_id, from_status, to_status, note) values (%s, 'PAYED', 'PAYED', 'executed')", (flow_id,))
    if business:
        fact = business.send("GET", "/business/facts?" + urllib.parse.urlencode({"biz_key": order_no, "order_no": order_no}))
        if fact["fact"] != "DONE":
            raise Failed(f"fact {order_no}: {fact}")
    # 5: done
    with db.transaction():
        move(db, flow_id, version, "PAYED", "BIZ_SUCCESS")
        paid = db.execute(
            "update article.pay_order set status = 'PAID', version = version + 1, updated_at = now()"
            " where id = %s and status = 'PROCESSING'",
            (order_id,),
        )
        if paid.rowcount != 1:
            raise Failed(f"order {order_id} is not PROCESSING")


def work(url, tag, worker, flows, taken, start, times):
    """One connection's share: it warms up, waits for the others, and takes payments while there are any."""
    try:
        wallet = Caller(os.environ["WALLET_URL"]) if os.environ.get("WALLET_URL") else None
        business = Caller(os.environ["BUSINESS_URL"]) if os.environ.get("BUSINESS_URL") else None
        with psycopg.connect(url, autocommit=True, prepare_threshold=0) as db:
            for n in range(max(flows // 20 // start.parties, 1)):
                pay(db, tag, f"warm-{worker}-{n}", wallet, business)
            start.wait(60)
            times[2 * worker] = time.monotonic()
            while True:
                with taken.get_lock():
                    n = taken.value
                    taken.value += 1
                if n >= flows:
                    break
                pay(db, tag, f"flow-{n}", wallet, business)
            times[2 * worker + 1] = time.monotonic()
    except threading.BrokenBarrierError:
        sys.exit(1)  # another failed, and said why
    except (Failed, psycopg.Error) as problem:
        start.abort()
        sys.exit(f"article: {' '.join(str(problem).split())}")


def run(url, connections, flows):
    """Seconds from the first creation to the end of the last payment."""
    taken, start = multiprocessing.Value("q", 0), multiprocessing.Barrier(connections)
    times = multiprocessing.Array("d", 2 * connections)
    tag = f"{time.time_ns() // 1000:x}"  # a simulator that has seen other runs knows their order numbers
    workers = [
        multiprocessing.Process(target=work, args=(url, tag, n, flows, taken, start, times), daemon=True) for n in range(connections)
    ]
    for worker in workers:
        worker.start()
    while running := [worker.sentinel for worker in workers if worker.is_alive()]:
        multiprocessing.connection.wait(running)
        if any(worker.exitcode for worker in workers):
            break
    # The last look at those that ended while the list was made; what still runs ends with this process.
    if any(worker.exitcode for worker in workers):
        raise Failed("a worker failed")
    return max(times[1::2]) - min(times[::2])


def main():
    try:
        url, flows = os.environ["DATABASE_URL"], int(os.environ["FLOWS"])
        connections = int(os.environ.get("CONNECTIONS", "16"))
    except (KeyError, ValueError) as problem:
        raise Failed(f"DATABASE_URL and FLOWS must be set: {problem}") from problem
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(SCHEMA)
    seconds = run(url, connections, flows)
    with psycopg.connect(url) as db:
        done, moves = db.execute(
            "select count(distinct f.id), count(l) from article.pay_order o join article.pay_flow f on f.order_id = o.id"
            " join article.pay_log l on l.flow_id = f.id"
            " where f.status = 'BIZ_SUCCESS' and o.status = 'PAID' and o.user_id like 'flow-%%'"
        ).fetchone()
    if (done, moves) != (flows, 5 * flows):
        raise Failed(f"{done} of {flows} payments are done, in {moves} log rows")
    print(json.dumps({"flows": flows, "seconds": seconds, "version": f"psycopg {psycopg.__version__}"}))


if __name__ == "__main__":
    try:
        main()
    except (Failed, psycopg.Error) as problem:
        sys.exit(f"article: {' '.join(str(problem).split())}")
