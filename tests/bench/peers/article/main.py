"""A payment service as a careful team writes it by hand: one row a statement, a commit after each step.

Order and attempt in a row each, unique constraints against doubles, compare-and-set on status and version, a log row for
every transition, no transaction open while an outside call runs. Each of CONNECTIONS processes takes one payment after
the other through its whole life. With WALLET_URL and BUSINESS_URL its three outside calls are real HTTP requests over a
connection that is kept; without them they cost nothing.

Prints one line of JSON: flows, seconds, version.
"""

import http.client
import json
import multiprocessing
import os
import sys
import time
import urllib.parse

import psycopg

SCHEMA = """
drop schema if exists article cascade;
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


class Caller:
    """One kept connection to a service that speaks JSON."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)

    def send(self, method, path, body=None):
        payload = None if body is None else json.dumps(body)
        self.connection.request(method, path, payload, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:200]!r}")
        return json.loads(text)


def move(db, flow_id, version, before, after, note=None, ref=None):
    """One edge by compare-and-set, with its log row; the caller commits."""
    changed = db.execute(
        "update article.pay_flow set status = %s, version = version + 1, wallet_ref = coalesce(%s, wallet_ref), updated_at = now()"
        " where id = %s and status = %s and version = %s",
        (after, ref, flow_id, before, version),
    )
    if changed.rowcount != 1:
        raise RuntimeError(f"flow {flow_id} is not {before}, version {version}")
    db.execute(
        "insert into article.pay_log (flow_id, from_status, to_status, note) values (%s, %s, %s, %s)",
        (flow_id, before, after, note),
    )
    return version + 1


def pay(db, user, wallet, business):
    # 1: the order, and an attempt at it
    found = db.execute("select id, status from article.pay_order where user_id = %s and biz_key = 'bench'", (user,)).fetchone()
    if found is None:
        db.execute("insert into article.pay_order (user_id, biz_key, status) values (%s, 'bench', 'PENDING') on conflict do nothing", (user,))
    order_id, status, attempts = db.execute(
        "select id, status, attempts from article.pay_order where user_id = %s and biz_key = 'bench' for update", (user,)
    ).fetchone()
    if status != "PENDING":
        raise RuntimeError(f"order {order_id} is {status}")
    flow_id = db.execute(
        "insert into article.pay_flow (order_id, attempt, order_no, amount, currency, status, deadline)"
        " values (%s, %s, %s, 1250, 'USD', 'WAIT_PAY', now() + interval '15 minutes') returning id",
        (order_id, attempts + 1, f"ar_{order_id}_{attempts + 1}"),
    ).fetchone()[0]
    db.execute("update article.pay_order set status = 'PROCESSING', attempts = attempts + 1, version = version + 1, updated_at = now() where id = %s", (order_id,))
    db.execute("insert into article.pay_log (flow_id, to_status) values (%s, 'WAIT_PAY')", (flow_id,))
    db.commit()
    # 2: say that a charge is about to leave
    order_no, amount, currency = db.execute("select order_no, amount, currency from article.pay_flow where id = %s", (flow_id,)).fetchone()
    version = move(db, flow_id, 0, "WAIT_PAY", "PAYING")
    db.commit()
    # 3: charge
    ref = None
    if wallet:
        answer = wallet.send("POST", "/charges", {"order_no": order_no, "amount": amount, "currency": currency, "user_id": user, "payload": None})
        if answer["status"] != "SUCCEEDED":
            raise RuntimeError(f"charge {order_no}: {answer}")
        ref = answer.get("request_id")
    version = move(db, flow_id, version, "PAYING", "PAYED", ref=ref or "free")
    db.commit()
    # 4: the business, and then the fact
    if business:
        business.send("POST", "/business/execute", {"order_no": order_no, "biz_key": order_no, "valid_until": None, "payload": None})
    db.execute("insert into article.pay_log (flow_id, from_status, to_status, note) values (%s, 'PAYED', 'PAYED', 'executed')", (flow_id,))
    db.commit()
    if business:
        fact = business.send("GET", "/business/facts?" + urllib.parse.urlencode({"biz_key": order_no, "order_no": order_no}))
        if fact["fact"] != "DONE":
            raise RuntimeError(f"fact {order_no}: {fact}")
    # 5: done
    move(db, flow_id, version, "PAYED", "BIZ_SUCCESS")
    db.commit()
    db.execute("update article.pay_order set status = 'PAID', version = version + 1, updated_at = now() where id = %s and status = 'PROCESSING'", (order_id,))
    db.commit()


def work(url, first, step, flows, tag):
    wallet = Caller(os.environ["WALLET_URL"]) if os.environ.get("WALLET_URL") else None
    business = Caller(os.environ["BUSINESS_URL"]) if os.environ.get("BUSINESS_URL") else None
    with psycopg.connect(url, prepare_threshold=2) as db:
        for n in range(first, flows, step):
            pay(db, f"{tag}-{n}", wallet, business)


def run(url, connections, flows, tag):
    began = time.monotonic()
    workers = [multiprocessing.Process(target=work, args=(url, n, connections, flows, tag)) for n in range(connections)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        sys.exit("article: a worker failed")
    return time.monotonic() - began


def main():
    url, flows = os.environ["DATABASE_URL"], int(os.environ["FLOWS"])
    connections = int(os.environ.get("CONNECTIONS", "16"))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(SCHEMA)
    run(url, connections, max(flows // 20, connections), "warm")
    seconds = run(url, connections, flows, "flow")
    with psycopg.connect(url) as db:
        done = db.execute(
            "select count(*) from article.pay_flow f join article.pay_order o on o.id = f.order_id"
            " where f.status = 'BIZ_SUCCESS' and o.status = 'PAID' and o.user_id like 'flow-%%'"
        ).fetchone()[0]
    if done != flows:
        sys.exit(f"article: {done} of {flows} are done")
    print(json.dumps({"flows": flows, "seconds": seconds, "version": f"psycopg {psycopg.__version__}"}))


if __name__ == "__main__":
    try:
        main()
    except (KeyError, ValueError) as missing:
        sys.exit(f"article: {missing!r}; DATABASE_URL and FLOWS must be set")
    except psycopg.Error as problem:
        sys.exit(f"article: {problem}")
