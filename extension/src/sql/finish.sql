-- Ownership and privileges of the extension's functions: security definer commands run as paylatch_owner, which owns
-- the tables and nothing else; nobody else may call anything until a migration grants it.

do $$
declare
    v record;
begin
    -- Signatures are written with every name qualified, as verify() reads them back.
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
    begin
        create role paylatch_owner nologin;
    exception when duplicate_object or unique_violation then
        null; -- roles are shared by the cluster's databases
    end;
    grant usage, create on schema paylatch to paylatch_owner;
    grant pg_read_all_stats, pg_read_all_settings to paylatch_owner;
    for v in select p.oid::regprocedure as signature from pg_catalog.pg_proc p
             where p.pronamespace = 'paylatch'::regnamespace loop
        execute format('alter function %s owner to paylatch_owner', v.signature);
        execute format('revoke all on function %s from public', v.signature);
    end loop;
    -- What was shipped, so that verify() notices a replaced function. Taken last, of everything that stands now.
    execute format($f$
        create function paylatch.manifest() returns jsonb language sql immutable parallel safe as
        $m$select %L::jsonb$m$ $f$,
        (select jsonb_object_agg(p.oid::regprocedure::text, paylatch.digest_of(p.oid)) from pg_catalog.pg_proc p
         where p.pronamespace = 'paylatch'::regnamespace));
    comment on function paylatch.manifest() is 'Digest of every function of the extension as it was installed.';
    alter function paylatch.manifest() owner to paylatch_owner;
    revoke all on function paylatch.manifest() from public;
end $$;
